"""Policies of the deduplication on the near-duplicate test sets: documents dropped, characters lost, time of a core.

`python -m benchmarks.dedup_policies DATA [--rounds N] [--thresholds 0.8 0.5]`; DATA is the folder of the test data.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pairs import machine
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.dedup.settings import DedupSettings
from tasks.dedup.step import dedup
from tests.tasks.corpus import documents_of, read_jsonl, row

SETS = {
    "planted": "neardup/planted_dev/docs.jsonl.gz",
    "reuters": "text/reuters_dev.jsonl.gz",
    "imdb": "text/imdb_dev.jsonl.gz",
}
# `plain` is greedy without the measurement of the lost text.
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {},
    "connected": {"policy": "connected"},
    "containment 0.8": {"policy": "containment", "containment": 0.8},
    "containment 0.95": {"policy": "containment"},
    "containment 0.98": {"policy": "containment", "containment": 0.98},
}


class Timed(Runner):
    """Adds up the seconds of a core of the stages that measure the lost text."""

    measuring = 0.0

    def batches(self, step: Step, stage: str, *args: Any, **options: Any) -> list[Outcome]:
        started = time.process_time()
        try:
            return super().batches(step, stage, *args, **{**options, "where": "thread"})
        finally:
            if stage in ("kept_sets", "lost", "sources"):
                self.measuring += time.process_time() - started


def run(folder: str, rows: Sequence[dict[str, Any]], settings: DedupSettings) -> tuple[Manifest, float, float]:
    """Deduplicate; seconds of a core in all, and of the measurement of the lost text."""
    root = Folder(folder)
    documents = documents_of(root, list(rows))
    with Timed(1) as runner:
        started = time.process_time()
        manifest = dedup(root, documents, settings, runner)
        return manifest, time.process_time() - started, runner.measuring


def main() -> None:
    """Read the arguments and print one line for each set, threshold and policy; the last ratio is to `plain`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.8, 0.5])
    given = parser.parse_args()
    print(machine())
    for name, path in SETS.items():
        rows = [row(d["text"], document_id=d["id"]) for d in read_jsonl(given.data / path)]
        characters = sum(len(document["text"]) for document in rows)
        print(f"{name}: {len(rows):,} documents, {characters:,} characters")
        for threshold in given.thresholds:
            seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            found: dict[str, Manifest] = {}
            for _ in range(given.rounds):
                for policy, chosen in POLICIES.items():
                    if policy == "plain":
                        continue
                    with tempfile.TemporaryDirectory() as folder:
                        settings = DedupSettings(threshold=threshold, **chosen)
                        found[policy], total, measuring = run(folder, rows, settings)
                    seconds[policy].append(total)
                    if policy == "greedy":
                        seconds["plain"].append(total - measuring)
            base = statistics.median(seconds["plain"])
            for policy, manifest in found.items():
                facts, took = manifest.outcome.facts, statistics.median(seconds[policy])
                removed, lost = facts["removed_characters"], facts["lost_characters"]
                print(
                    f"  threshold {threshold}, {policy:<16} dropped {manifest.outcome.seen - manifest.outcome.kept:6,} "
                    f"documents, {removed:10,} characters, lost {lost:9,} ({lost / max(removed, 1):6.2%}), "
                    f"{took:5.2f} core-seconds, {took / base:.2f} x"
                )


if __name__ == "__main__":
    main()
