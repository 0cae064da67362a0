"""Which documents may be duplicates: equal content, or a band in common.

Documents are numbered `shard << 32 | row`. Rank decides who stays: the longer text, then the lower id, so that the
answer does not depend on how documents are spread over shards.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.dedup.sketch import band_name
from tasks.shards import read_table, write_table
from tasks.steps import Outcome
from tasks.storage import Folder

Numbers = npt.NDArray[np.int64]

EXACT = pa.schema([("dropped", pa.int64()), ("kept", pa.int64())])
CANDIDATE = pa.schema([("first", pa.int64()), ("second", pa.int64())])  # first ranks better


def read_sketches(folder: Folder, sketches: Sequence[str], columns: list[str]) -> tuple[pa.Table, Numbers]:
    """These columns of all sketches, and the number of each document."""
    tables = [read_table(folder, sketch, columns) for sketch in sketches]
    numbers = [np.arange(len(table), dtype=np.int64) | (shard << 32) for shard, table in enumerate(tables)]
    return pa.concat_tables(tables), np.concatenate(numbers)


def runs(keys: np.ndarray) -> Iterator[Numbers]:
    """Places of equal keys, for each key that occurs twice or more; in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for start, end in pairwise([0, *cuts.tolist(), len(keys)]):
        if end - start > 1:
            yield order[start:end]


def find_exact(folder: Folder, name: str, sketches: Sequence[str]) -> Outcome:
    """Group equal contents: `exact/part-00000.parquet` leads each repetition to the best-ranked copy."""
    table, numbers = read_sketches(folder, sketches, ["id", "length", "content"])
    contents = np.array(table["content"].to_pylist(), dtype="S16")
    dropped, kept = [], []
    for group in runs(contents):
        best, *others = by_rank(table, numbers, group)
        dropped += others
        kept += [best] * len(others)
    output = pa.table({"dropped": numbers[dropped], "kept": numbers[kept]}, schema=EXACT).sort_by("dropped")
    return Outcome(outputs=(write_table(folder, f"exact/part-{name.rpartition('-')[2]}.parquet", output),))


def find_candidates(
    folder: Folder, name: str, band: int, sketches: Sequence[str], exact: Sequence[str], pivots: int
) -> Outcome:
    """Pair documents that share one band: `candidates/band-NN.parquet`, sorted, each pair once."""
    table, numbers = read_sketches(folder, sketches, ["id", "length", band_name(band)])
    gone = np.concatenate([read_table(folder, part)["dropped"].to_numpy() for part in exact])
    usable = np.flatnonzero(~np.isin(numbers, gone) & table[band_name(band)].is_valid().to_numpy())
    table, numbers = table.take(usable), numbers[usable]
    first: list[int] = []
    second: list[int] = []
    hot = 0
    for group in runs(table[band_name(band)].to_numpy()):
        ranked = by_rank(table, numbers, group)
        hot += len(ranked) > pivots + 1
        for better, worse in pair_up(ranked, pivots):
            first.append(better)
            second.append(worse)
    output = pa.table({"first": numbers[first], "second": numbers[second]}, schema=CANDIDATE)
    output = output.sort_by([("first", "ascending"), ("second", "ascending")])
    record = write_table(folder, f"candidates/band-{band:02d}.parquet", output)
    return Outcome(outputs=(record,), facts={"hot_buckets": hot})


def pair_up(ranked: Sequence[int], pivots: int) -> Iterator[tuple[int, int]]:
    """All pairs of a bucket with at least one of its `pivots` best members: linear in large buckets."""
    yield from combinations(ranked[: pivots + 1], 2)
    for worse in ranked[pivots + 1 :]:
        for better in ranked[:pivots]:
            yield better, worse


def by_rank(table: pa.Table, numbers: Numbers, places: Numbers) -> list[int]:
    """These rows of a table with `id` and `length`, best rank first."""
    some = table.select(["id", "length"]).take(places)
    keys = [
        (-length, document, int(numbers[place]), int(place))
        for place, length, document in zip(places, some["length"].to_pylist(), some["id"].to_pylist(), strict=True)
    ]
    return [place for *_, place in sorted(keys)]
