"""Clustering alone, at many edges: seconds and peak memory of its two stages, each in a process of its own.

    python -m benchmarks.clusters [--edges 10000000] [--folder DIR]

Of the documents 70 % are copies: a third of these exact, the others near duplicates of an earlier document, so that
most clusters are small and some are large. The sketches hold what the stages read of a document: number, id, URL and
length. The folder lies on the disk; the mapped file of the union-find counts as memory while the system keeps it there.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pairs import machine
from gpt2train.store.folder import Folder
from tasks.core.shards import write_numbers
from tasks.dedup.clusters import Part, find_clusters
from tasks.dedup.components import PAIRS, edge_parts, partition_edges
from tasks.dedup.document_index import Group
from tasks.dedup.exact import EXACT

SHARD, GROUP = 50_000, 20  # documents of a shard, shards of a group
COPIES = 0.7
PIECE = 1_000_000  # edges of a file


def write_documents(folder: Folder, count: int) -> list[Group]:
    """Write the sketches of `count` documents."""
    groups = []
    shards = -(-count // SHARD)
    for start in range(0, shards, GROUP):
        names = tuple(f"{number:05d}" for number in range(start, min(start + GROUP, shards)))
        places = np.arange(start * SHARD, min((start + len(names)) * SHARD, count))
        numbers = (places // SHARD) << 32 | places % SHARD
        hashes = pa.array([f"{place * 0x9E3779B97F4A7C15 & 2**64 - 1:016x}" for place in places.tolist()])
        urls = pa.array([f"http://host-{place % 9973}.example/pages/{place}" for place in places.tolist()])
        table = pa.table({"number": numbers, "id": hashes, "url": urls, "length": 300 + places % 5000})
        name = f"sketch/{start:05d}.parquet"
        with folder.writing(name) as draft:
            pq.write_table(table, draft)
        groups.append(Group(folder, names, start, sketch=name, rows=len(places)))
    return groups


def write_edges(folder: Folder, count: int, edges: int) -> tuple[list[str], list[str]]:
    """Write edges from random documents to earlier ones; return the files of exact copies and of pairs."""
    rng = np.random.default_rng(1)
    exact, pairs = [], []
    worse = np.sort(rng.choice(count - 1, edges, replace=False) + 1)
    for start in range(0, edges, PIECE):
        some = worse[start : start + PIECE]
        better = (some * rng.random(len(some)) ** 0.2).astype(np.int64)
        one, other = ((ends // SHARD) << 32 | ends % SHARD for ends in (some, better))
        is_exact = rng.random(len(some)) < 1 / 3
        table = pa.table({"dropped": one[is_exact], "kept": other[is_exact]}, schema=EXACT)
        exact.append(write_numbers(folder, f"exact/{start:09d}.parquet", table).name)
        near, jaccard = ~is_exact, 0.7 + 0.3 * rng.random((~is_exact).sum())
        columns = {"first": other[near], "second": one[near], "jaccard": jaccard, "accepted": np.ones_like(jaccard) > 0}
        pairs.append(write_numbers(folder, f"pairs/{start:09d}.parquet", pa.table(columns, schema=PAIRS)).name)
    return exact, pairs


def measured(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a stage in a new process, and print its seconds and its peak memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result, seconds, before, peak = pool.apply(_stage, (function, *arguments))
    print(f"{name}: {seconds:.1f} s, peak {peak:.2f} GB, {before:.2f} GB of them before the stage", flush=True)
    return result


def _stage(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float, float]:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    result = function(*arguments)
    seconds = time.perf_counter() - began
    return result, seconds, before / 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Write the documents and the edges, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    count = round(given.edges / COPIES)
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Folder(temporary)
        groups, (exact, pairs) = write_documents(folder, count), write_edges(folder, count, given.edges)
        parts = edge_parts(given.edges)
        print(f"{machine()}\n{count:,} documents, {given.edges:,} edges, {parts} parts", flush=True)
        chosen = [Part(0, tuple(exact), tuple(pairs))]
        if parts > 1:
            divided = measured("edges", partition_edges, folder, "edges-00000", parts, groups, exact, pairs)
            names = [record.name for record in divided.outputs]
            chosen = [Part(number, (names[number],), (names[parts + number],)) for number in range(parts)]
        for part in chosen:
            measured(f"clusters, part {part.number}", find_clusters, folder, "x", part, "greedy", groups)


if __name__ == "__main__":
    main()
