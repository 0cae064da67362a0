"""Verified pairs and exact copies -> clusters, and which member of each stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tasks.dedup.pairs import Numbers, read_sketches
from tasks.shards import read_table, write_rows
from tasks.steps import Outcome
from tasks.storage import Folder

CLUSTER = pa.schema(
    [
        ("cluster", pa.string()),  # id of the cluster's best-ranked member
        ("id", pa.string()),
        ("url", pa.string()),
        ("number", pa.int64()),  # shard << 32 | row
        ("reason", pa.string()),  # exact_duplicate, near_duplicate; null: it stays
        ("kept_id", pa.string()),
        ("kept_url", pa.string()),
        ("jaccard", pa.float64()),  # exact, with the kept one; null: not compared (policy `connected`)
    ]
)
Policy = Literal["greedy", "connected"]


@dataclass(frozen=True)
class Edge:
    """A verified pair of documents, given by rank: `better < worse`."""

    better: int
    worse: int
    jaccard: float


def keepers(count: int, edges: Sequence[Edge], components: Sequence[int], policy: Policy) -> list[tuple[int, float]]:
    """For each document, by rank, the one that is kept in its place (itself if it stays) and their Jaccard.

    `greedy` goes through the documents from the best rank down and drops one if it is verified against a kept one:
    the most similar, then the best-ranked of these. `connected` keeps the best-ranked member of each component; the
    Jaccard is nan where the two were never compared.
    """
    below: dict[int, list[Edge]] = {}
    for edge in edges:
        below.setdefault(edge.worse, []).append(edge)
    kept: list[tuple[int, float]] = []
    best: dict[int, int] = {}
    for node in range(count):
        better = below.get(node, [])
        if policy == "connected":
            chosen = best.setdefault(components[node], node)
            known = {edge.better: edge.jaccard for edge in better}
            kept.append((chosen, 1.0 if chosen == node else known.get(chosen, float("nan"))))
            continue
        options = [(-edge.jaccard, edge.better) for edge in better if kept[edge.better][0] == edge.better]
        similarity, chosen = min(options, default=(-1.0, node))
        kept.append((chosen, -similarity))
    return kept


def components_of(count: int, edges: Sequence[Edge]) -> list[int]:
    """Number of the connected component of each of `count` documents."""
    ends = np.array([(edge.better, edge.worse) for edge in edges], dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(count, count))
    return connected_components(graph, directed=False)[1].tolist()


def find_clusters(
    folder: Folder, name: str, policy: Policy, sketches: Sequence[str], exact: Sequence[str], pairs: Sequence[str]
) -> Outcome:
    """Cluster all verified duplicates: `clusters/part-00000.parquet`, a row for each member, best rank first."""
    copies = [row for part in exact for row in read_table(folder, part).to_pylist()]
    near = [row for part in pairs for row in read_table(folder, part).to_pylist() if row["accepted"]]
    members = _members(folder, sketches, [n for r in copies for n in r.values()] + [r[e] for r in near for e in ENDS])
    rank = {member["number"]: place for place, member in enumerate(members)}
    edges = [Edge(rank[row["first"]], rank[row["second"]], row["jaccard"]) for row in near]
    copy_of = {rank[row["dropped"]]: rank[row["kept"]] for row in copies}
    components = components_of(len(members), [*edges, *(Edge(k, d, 1.0) for d, k in copy_of.items())])
    kept = keepers(len(members), edges, components, policy)
    heads: dict[int, str] = {}
    rows = []
    for place, member in enumerate(members):
        chosen, similarity = kept[copy_of.get(place, place)]  # a copy fares as the document that it repeats
        stays = chosen == place
        exactly = copy_of.get(place) == chosen
        rows.append(
            {
                "cluster": heads.setdefault(components[place], member["id"]),
                "id": member["id"],
                "url": member["url"],
                "number": member["number"],
                "reason": None if stays else "exact_duplicate" if exactly else "near_duplicate",
                "kept_id": members[chosen]["id"],
                "kept_url": members[chosen]["url"],
                "jaccard": None if np.isnan(similarity) else similarity,
            }
        )
    rows.sort(key=lambda row: row["cluster"])  # stable: members stay in the order of their rank
    record = write_rows(folder, f"clusters/part-{name.rpartition('-')[2]}.parquet", rows, CLUSTER)
    return Outcome(outputs=(record,), facts={"clusters": len(heads)})


ENDS = ("first", "second")


def _members(folder: Folder, sketches: Sequence[str], numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Number, id, url and length of these documents, best rank first."""
    table, all_numbers = read_sketches(folder, sketches, ["id", "url", "length"])
    places = np.searchsorted(all_numbers, np.unique(np.array(numbers, dtype=np.int64)))
    found: Numbers = all_numbers[places]
    rows = [{**row, "number": int(n)} for row, n in zip(table.take(places).to_pylist(), found, strict=True)]
    return sorted(rows, key=lambda row: (-row["length"], row["id"], row["number"]))
