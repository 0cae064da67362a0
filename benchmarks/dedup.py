"""Deduplicate a million synthetic documents of 300 words: seconds a stage, memory, and what was found.

`python -m benchmarks.dedup [--documents N] [--workers N] [--folder DIR] [--copies N] [--policy POLICY | --substrings]`

With `--substrings` the documents go through the step that removes repeated runs of words instead.
"""

import argparse
import resource
import tempfile
import threading
import time
from collections import Counter
from typing import Any, NamedTuple, get_args

import numpy as np
import psutil
import pyarrow.parquet as pq

from benchmarks.pairs import machine
from benchmarks.synthetic import COPIES, HUNDRED, ORIGINALS, SIMILARITIES, documents, mix, plan
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.dedup.bands import with_bands
from tasks.dedup.settings import DedupSettings, Policy
from tasks.dedup.step import dedup
from tasks.substrings.settings import SubstringSettings
from tasks.substrings.step import substrings

GIGA = 2**30


class Memory(threading.Thread):
    """Watches the memory of this process and all below it; shared pages count in each."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.over = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.over.wait(0.2):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            self.most = max(self.most, total)


class Timed(Runner):
    """Notes how long each stage takes, and its memory at most."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, int] = {}

    def batches(self, step: Step, stage: str, *args: Any, **options: Any) -> list[Outcome]:
        memory = Memory()
        memory.start()
        started = time.perf_counter()
        try:
            return super().batches(step, stage, *args, **options)
        finally:
            self.seconds[stage] = time.perf_counter() - started
            memory.over.set()
            memory.join()
            self.memory[stage] = memory.most


def cpu_seconds() -> float:
    """CPU time of this process and of those below it that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Measured(NamedTuple):
    """A finished deduplication and what it took."""

    manifest: Manifest
    seconds: float
    core_seconds: float
    bytes: int
    """Memory of all processes together, at most."""


def measure(
    folder: Folder, count: int, workers: int, settings: DedupSettings | SubstringSettings, copies: int = COPIES
) -> Measured:
    """Generate, deduplicate, print."""
    with Timed(workers) as runner:
        started = time.perf_counter()
        source = documents(folder, count, runner, copies=copies)
        size = sum(record.bytes for record in source.outputs)
        print(
            f"{count:,} documents generated in {time.perf_counter() - started:.0f} s: {size / GIGA:.2f} GiB of Parquet"
        )
    with Timed(workers) as runner:
        memory = Memory()
        memory.start()
        started, spent = time.perf_counter(), cpu_seconds()
        if isinstance(settings, SubstringSettings):
            manifest = substrings(folder, source, settings, runner)
        else:
            manifest = dedup(folder, source, settings, runner)
        seconds = time.perf_counter() - started
        memory.over.set()
        stages = ", ".join(
            f"{stage} {taken:.0f} ({runner.memory[stage] / GIGA:.1f} GiB)" for stage, taken in runner.seconds.items()
        )
    spent = cpu_seconds() - spent  # the workers have ended and are counted
    print(f"{manifest.step} in {seconds:.0f} s ({stages}), {memory.most / GIGA:.2f} GiB over all processes")
    print(f"  {spent:,.0f} core-seconds: {1e6 * spent / count:,.0f} us a document; {manifest.outcome.reasons}")
    sizes: Counter[str] = Counter()
    for record in manifest.outcome.audit:
        sizes[record.name.partition("/")[0] + "/"] += record.bytes
    for kind, total in sizes.items():
        print(f"  {kind:<10} {total / count:8.1f} bytes a document")
    print(f"  facts: {manifest.outcome.facts}")
    return Measured(manifest, seconds, spent, memory.most)


def recall(
    folder: Folder, manifest: Manifest, count: int, settings: DedupSettings, copies: int = COPIES
) -> dict[float, float]:
    """Share of the planted pairs of each similarity that were found; printed beside what the S-curve promises.

    Left out are pairs of which an exact copy took one member's place.
    """
    numbers = np.arange(count)
    ids = mix(numbers.astype(np.uint64))
    originals, _ = plan(numbers, count, 1, copies)
    whole = np.flatnonzero(numbers % HUNDRED < ORIGINALS + COPIES)
    whole = whole[np.lexsort((ids[whole], originals[whole]))]
    stays = np.ones(count, dtype=bool)
    stays[whole[1:][originals[whole[1:]] == originals[whole[:-1]]]] = False
    reasons = manifest.outcome.reasons
    print(
        f"  exact copies: {np.count_nonzero(~stays):,} planted, {reasons.get('exact_duplicate', 0):,} dropped as such"
    )
    of_id = np.argsort(ids)
    found = np.zeros(count, dtype=bool)
    accepted = wrong = 0
    for record in manifest.outcome.audit:
        if not record.name.startswith("pairs/"):
            continue
        with (folder / "dedup").open(record.name) as file:
            table = pq.read_table(file, columns=["first_id", "second_id", "jaccard"])
        ends = [
            np.array([int(text, 16) for text in table[name].to_pylist()], np.uint64) for name in table.column_names[:2]
        ]
        one, other = (of_id[np.searchsorted(ids, end, sorter=of_id)] for end in ends)
        jaccard = table["jaccard"].to_numpy()
        accepted += int((jaccard >= settings.threshold).sum())
        for copy, original in ((one, other), (other, one)):
            planted = (copy % HUNDRED >= ORIGINALS + COPIES) & (originals[copy] == original)
            expected = np.array(SIMILARITIES)[copy[planted] % HUNDRED - ORIGINALS - COPIES]
            wrong += int((abs(jaccard[planted] - expected) > 0.01).sum())
            found[copy[planted]] = True
    print(f"  accepted pairs: {accepted:,}; planted pairs whose Jaccard is not as planted: {wrong}")
    shares = {}
    for level, similarity in enumerate(SIMILARITIES):
        similar = numbers[numbers % HUNDRED == ORIGINALS + COPIES + level]
        similar = similar[stays[originals[similar]]]
        curve = 1 - (1 - similarity**settings.rows_per_band) ** settings.num_bands
        shares[similarity] = float(found[similar].mean())
        share = f"{shares[similarity]:.4f} of {len(similar):,}"
        print(f"  Jaccard {similarity:.2f}: {share} compared, S-curve {curve:.4f}")
    return shares


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--copies", type=int, default=COPIES, help="exact copies of each hundred; 15 more are similar")
    parser.add_argument("--folder", help="keep the files here")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--policy", choices=get_args(Policy), default="greedy")
    chosen.add_argument("--substrings", action="store_true", help="run the step `substrings` instead")
    given = parser.parse_args()
    print(machine())
    settings = with_bands(DedupSettings(policy=given.policy))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(given.folder or temporary)
        if given.substrings:
            measure(folder, given.documents, given.workers, SubstringSettings(enabled=True))
            return
        measured = measure(folder, given.documents, given.workers, settings, given.copies)
        recall(folder, measured.manifest, given.documents, settings, given.copies)


if __name__ == "__main__":
    main()
