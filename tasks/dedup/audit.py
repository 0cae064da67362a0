"""What a reader of the report asks of a finished deduplication: which clusters are the largest, and what was kept."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.shards import EXCERPT, read_table
from tasks.steps import Manifest
from tasks.storage import Folder


@dataclass(frozen=True)
class Member:
    """A document of a cluster."""

    id: str
    url: str
    reason: str | None
    """Why it was dropped; None: it stays."""
    kept_id: str
    """What was kept in its place; its own id where it stays."""
    kept_url: str
    jaccard: float | None
    """Exact, with the kept one; None where the two were not compared (policy `connected`)."""
    excerpt: str
    """The first 300 characters of its text; empty for a document of an earlier crawl."""


@dataclass(frozen=True)
class Cluster:
    """Documents that repeat one another."""

    id: str
    """Id of the best-ranked member."""
    size: int
    """Members, also those that are not given here."""
    members: tuple[Member, ...]
    """The first ones by rank."""

    @property
    def kept(self) -> tuple[Member, ...]:
        """The given members that stay: one, or several that are too unlike each other (policy `greedy`)."""
        return tuple(member for member in self.members if member.reason is None)


def largest_clusters(folder: Folder, manifest: Manifest, count: int = 10, members: int = 5) -> list[Cluster]:
    """The largest clusters, largest first; of equal size the lower id first.

    Args:
        folder: the step's folder, `root / manifest.folder`.
        manifest: of the deduplication.
        count: clusters at most.
        members: members of each at most; their excerpts are read from the shards they lie in.
    """
    parts = [record.name for record in manifest.outcome.audit if record.name.startswith("clusters/")]
    if not parts or not count:
        return []
    names = pa.concat_arrays([chunk for p in parts for chunk in read_table(folder, p, ["cluster"])["cluster"].chunks])
    sizes = pa.Table.from_struct_array(pc.value_counts(names))
    sizes = sizes.sort_by([("counts", "descending"), ("values", "ascending")]).slice(0, count)
    order = sizes["values"].to_pylist()
    if not order:  # Parquet's filter takes no empty set
        return []
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in order}
    for part in parts:
        with folder.open(part) as file:
            for row in pq.read_table(file, filters=[("cluster", "in", order)]).to_pylist():
                rows[row["cluster"]].append(row)
    shown = [row for found in rows.values() for row in found[:members]]
    excerpts = _excerpts(folder, manifest, shown)
    return [
        Cluster(name, size, tuple(_member(row, excerpts) for row in rows[name][:members]))
        for name, size in zip(order, sizes["counts"].to_pylist(), strict=True)
    ]


def _member(row: dict[str, Any], excerpts: dict[str, str]) -> Member:
    names = ("id", "url", "reason", "kept_id", "kept_url", "jaccard")
    return Member(**{name: row[name] for name in names}, excerpt=excerpts.get(row["id"], ""))


def _excerpts(folder: Folder, manifest: Manifest, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Heads of the texts of these rows of the cluster files, by id; each shard is opened once."""
    wanted: dict[str, list[str]] = {}
    for row in rows:
        place = f"part-{row['number'] >> 32:05d}.parquet"
        wanted.setdefault(place if row["reason"] is None else f"rejected/{place}", []).append(row["id"])
    found: dict[str, str] = {}
    named = {record.name for record in manifest.outcome.files}
    for name, ids in sorted(wanted.items()):
        if name not in named:
            continue
        with folder.open(name) as file:
            table = pq.read_table(file, columns=["id", "text"], filters=[("id", "in", ids)])
        heads = pc.utf8_slice_codeunits(table["text"], 0, EXCERPT).to_pylist()
        found.update(zip(table["id"].to_pylist(), heads, strict=True))
    return found
