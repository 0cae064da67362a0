"""The sums for larger crawls, from what a finished output folder says of itself: manifests and timings.

`python -m benchmarks.scale OUTPUT [--pages 1e6 1e8 1e10]`

For each step, with N the rows of the URL list and n those of this run:

    core-hours = CPU seconds of the step / n x N / 3600      of all its processes; the start of workers is in it
    bytes      = bytes of the manifest's files / n x N
    files      = files of the manifest / shards of the list x N / R     with R rows in a shard of the list
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, read_manifest
from tasks.blacklist.settings import BlacklistSettings
from tasks.core.timings import read_timings


@dataclass(frozen=True)
class Cost:
    """What one step cost: for each row of the list, and in files for each shard of it."""

    step: str
    seen: float
    core_seconds: float
    bytes: float
    files: float


def costs(root: Folder) -> tuple[int, list[Cost]]:
    """Rows of the list, and the cost of each finished step a row.

    Raises:
        SystemExit: there is no finished step.
    """
    timings = read_timings(root)
    # Whatever the sources were: every step, in the order in which they ended.
    entries = [entry for entry in root.fs.ls(root.path(), detail=True) if entry["type"] == "directory"]
    places = [root / PurePosixPath(entry["name"]).name for entry in entries]
    manifests = [manifest for place in places if (manifest := read_manifest(place)) is not None]
    found = [manifest for manifest in manifests if manifest.step in timings and manifest.step != "report"]
    found.sort(key=lambda manifest: timings[manifest.step]["ended"])
    if not found:
        raise SystemExit(f"{root.url} holds no finished step; run flows.dataprep --output {root.url} first")
    rows, shards = found[0].outcome.seen, len(found[0].outputs)
    return rows, [_cost(manifest, timings.get(manifest.step, {}), rows, shards) for manifest in found]


def _cost(manifest: Manifest, timing: dict[str, Any], rows: int, shards: int) -> Cost:
    files = manifest.outcome.files
    return Cost(
        step=manifest.step,
        seen=manifest.outcome.seen / rows,
        core_seconds=timing.get("cpu_seconds", 0.0) / rows,
        bytes=sum(record.bytes for record in files) / rows,
        files=len(files) / shards,
    )


def table(found: Sequence[Cost], pages: Sequence[float], shard: int) -> str:
    """A Markdown table: a row a step, three columns a size."""
    heads = [f"{what} at {size:.0e}".replace("e+0", "e").replace("e+", "e") for size in pages for what in HEADS]
    lines = [f"| step | rows in | ms a row | {' | '.join(heads)} |", "|---|---|---|" + "---|" * len(heads)]
    total = Cost("together", 1.0, *(sum(getattr(cost, name) for cost in found) for name in NUMBERS))
    for cost in (*found, total):
        cells = [f"{cost.seen:.2f}", f"{1000 * cost.core_seconds:.1f}"]
        for size in pages:
            cells += [
                _short(cost.core_seconds * size / 3600),
                _size(cost.bytes * size),
                _short(cost.files * size / shard),
            ]
        lines.append(f"| {cost.step} | {' | '.join(cells)} |")
    return "\n".join(lines)


HEADS = ("core-hours", "bytes", "files")
NUMBERS = ("core_seconds", "bytes", "files")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.0f} PB" if value >= 10 else f"{value:.2g} PB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="folder or URL of a finished dataprep")
    parser.add_argument("--pages", type=float, nargs="*", default=[1e6, 1e8, 1e10])
    parser.add_argument("--shard-rows", type=int, default=BlacklistSettings().shard_rows, help="blacklist.shard_rows")
    given = parser.parse_args()
    rows, found = costs(Folder(given.output))
    print(f"{rows:,} rows in the list of {given.output}\n")
    print(table(found, given.pages, given.shard_rows))


if __name__ == "__main__":
    main()
