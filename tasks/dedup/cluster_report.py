"""Largest clusters of a finished deduplication, for the report."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.shards import EXCERPT, read_table


@dataclass(frozen=True)
class ClusterMember:
    """Document of a cluster."""

    id: str
    url: str
    reason: str | None  # reason code of its drop; None: it is kept
    kept_id: str  # id of the document kept instead; its own id if it is kept
    kept_url: str
    jaccard: float | None
    """Exact similarity to the kept document; None if the two were not compared (policy `connected`)."""
    excerpt: str  # first 300 characters of its text; empty for a document of a previous crawl


@dataclass(frozen=True)
class Cluster:
    """Cluster of duplicates."""

    id: str  # id of the best-ranked member
    size: int  # number of all members, including those omitted from `members`
    members: tuple[ClusterMember, ...]
    """Best-ranked members; several of them are kept if they are not similar to each other (policy `greedy`)."""


def largest_clusters(folder: Folder, manifest: Manifest, count: int = 10, members: int = 5) -> list[Cluster]:
    """Read the largest clusters, in descending order of size, then ascending order of id.

    At most `count` clusters with `members` members each, whose excerpts are read from their shards in the folder of the
    step.
    """
    parts = [record.name for record in manifest.outcome.audit if record.name.startswith("clusters/")]
    if not parts or not count:
        return []
    names = pa.concat_arrays([chunk for p in parts for chunk in read_table(folder, p, ["cluster"])["cluster"].chunks])
    sizes = pa.Table.from_struct_array(pc.value_counts(names))
    sizes = sizes.sort_by([("counts", "descending"), ("values", "ascending")]).slice(0, count)
    order = sizes["values"].to_pylist()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    for part in parts:
        for row in _rows_with(read_table(folder, part), "cluster", order).to_pylist():
            rows[row["cluster"]].append(row)
    shown = [row for found in rows.values() for row in found[:members]]
    excerpts = _excerpts(folder, manifest, shown)
    return [
        Cluster(name, size, tuple(_member(row, excerpts) for row in rows[name][:members]))
        for name, size in zip(order, sizes["counts"].to_pylist(), strict=True)
    ]


def _rows_with(table: pa.Table, column: str, values: list[str]) -> pa.Table:
    return table.filter(pc.is_in(table[column], pa.array(values, pa.string())))


def _member(row: dict[str, Any], excerpts: dict[str, str]) -> ClusterMember:
    names = ("id", "url", "reason", "kept_id", "kept_url", "jaccard")
    return ClusterMember(**{name: row[name] for name in names}, excerpt=excerpts.get(row["id"], ""))


def _excerpts(folder: Folder, manifest: Manifest, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Beginnings of the texts of these rows of the cluster files, by id; each shard is opened once."""
    wanted: dict[str, list[str]] = {}
    for row in rows:
        shard = f"part-{row['number'] >> 32:05d}.parquet"
        wanted.setdefault(shard if row["reason"] is None else f"rejected/{shard}", []).append(row["id"])
    found: dict[str, str] = {}
    named = {record.name for record in manifest.outcome.files}
    for name, ids in sorted(wanted.items()):
        if name not in named:
            continue
        table = _rows_with(read_table(folder, name, ["id", "text"]), "id", ids)
        heads = pc.utf8_slice_codeunits(table["text"], 0, EXCERPT).to_pylist()
        found.update(zip(table["id"].to_pylist(), heads, strict=True))
    return found
