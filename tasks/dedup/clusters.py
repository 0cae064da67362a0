"""Verified pairs and exact copies -> clusters, and which member of each stays.

One batch does it for all documents, but only those that repeat another are in memory: some 250 bytes each.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.dedup.groups import Group, Numbers, by_rank, first_earlier, group_of, look_up, write_numbers
from tasks.shards import read_table, write_table
from tasks.steps import Outcome
from tasks.storage import Folder

CLUSTER = pa.schema(
    [
        ("cluster", pa.string()),  # id of the cluster's best-ranked member
        ("id", pa.string()),
        ("url", pa.string()),
        ("number", pa.int64()),  # shard << 32 | row
        ("earlier", pa.int32()),  # which of `earlier` it is from; null: from this crawl
        ("reason", pa.string()),  # exact_duplicate, near_duplicate, …_earlier; null: it stays
        ("kept_id", pa.string()),
        ("kept_url", pa.string()),
        ("jaccard", pa.float64()),  # exact, with the kept one; null: not compared (policy `connected`)
    ]
)
REASONS = ("exact_duplicate", "near_duplicate", "exact_duplicate_earlier", "near_duplicate_earlier")
DROPPED = ["number", "reason", "kept_url", "jaccard"]
Policy = Literal["greedy", "connected"]


class Edges(NamedTuple):
    """Verified pairs of documents, each given by rank: `better < worse`."""

    better: Numbers
    worse: Numbers
    jaccard: npt.NDArray[np.float64]


class Kept(NamedTuple):
    """What is kept in the place of each document, by rank."""

    places: Numbers
    """The document's own rank where it stays."""
    jaccard: npt.NDArray[np.float64]
    """nan where the two were never compared."""


def keepers(edges: Edges, components: Numbers, policy: Policy, fixed: int = 0) -> Kept:
    """For each document, by rank, the one that is kept in its place.

    `greedy` goes through the documents from the best rank down and drops one if it is verified against a kept one:
    the most similar, then the best-ranked of these. `connected` keeps the best-ranked member of each component.

    Args:
        edges: the verified pairs.
        components: [documents] the component of each.
        policy: which.
        fixed: so many of the best-ranked documents stay in any case; there is no edge between two of them.
    """
    count = len(components)
    order = np.lexsort((edges.better, edges.worse))
    better, worse, jaccard = (column[order] for column in edges)
    if policy == "greedy":
        from tasks.dedup import kernels

        return Kept(*kernels.greedy(count, worse, better, jaccard))
    _, first, inverse = np.unique(components, return_index=True, return_inverse=True)
    kept = first[inverse]
    kept[:fixed] = np.arange(fixed)
    similarity = np.where(kept == np.arange(count), 1.0, np.nan)
    compared = better == kept[worse]
    similarity[worse[compared]] = jaccard[compared]
    return Kept(kept, similarity)


def components_of(count: int, one: Numbers, other: Numbers) -> Numbers:
    """Number of the connected component of each of `count` documents."""
    # Imported here: 0.1 s, which every command of the flows would take before its first step.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def find_clusters(
    folder: Folder, name: str, policy: Policy, groups: Sequence[Group], exact: Sequence[str], pairs: Sequence[str]
) -> Outcome:
    """Cluster all verified duplicates.

    Writes `clusters/part-00000.parquet`, a row for each member, best rank first, and `dropped/part-00000.parquet`, a
    row for each document that goes, ascending by number.
    """
    copies = pa.concat_tables([read_table(folder, part) for part in exact])
    near = pa.concat_tables([_accepted(folder, part) for part in pairs])
    ends = [copies["dropped"], copies["kept"], near["first"], near["second"]]
    numbers = np.unique(np.concatenate([column.to_numpy() for column in ends]))
    if not len(numbers):
        return _write(folder, CLUSTER.empty_table(), 0)
    documents = look_up(folder, groups, numbers, ["id", "url", "length"])
    order = by_rank(groups, numbers, documents)
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[order] = np.arange(len(numbers))
    dropped, kept, first, second = (rank[np.searchsorted(numbers, column.to_numpy())] for column in ends)
    components = components_of(len(numbers), np.append(first, dropped), np.append(second, kept))
    early = numbers[order] >= first_earlier(groups)
    chosen = keepers(Edges(first, second, near["jaccard"].to_numpy()), components, policy, int(early.sum()))
    fate = np.arange(len(numbers))
    fate[dropped] = kept  # a copy fares as the document that it repeats
    places, similarity = chosen.places[fate], chosen.jaccard[fate]
    stays = places == np.arange(len(numbers))
    nearly = np.ones(len(numbers), dtype=np.int64)
    nearly[dropped[places[dropped] == kept]] = 0
    _, head = np.unique(components, return_index=True)
    documents, numbers, where = documents.take(order).combine_chunks(), numbers[order], group_of(groups, numbers[order])
    earlier = np.array([-1 if group.earlier is None else group.earlier for group in groups])[where]
    ids, urls = documents["id"], documents["url"]
    table = pa.table(
        {
            "cluster": ids.take(pa.array(head[components])),
            "id": ids,
            "url": urls,
            "number": numbers,
            "earlier": pa.array(earlier, pa.int32(), mask=earlier < 0),
            "reason": pa.array(REASONS).take(pa.array(nearly + 2 * early[places], mask=stays)),
            "kept_id": ids.take(pa.array(places)),
            "kept_url": urls.take(pa.array(places)),
            "jaccard": pa.array(similarity, mask=np.isnan(similarity)),
        },
        schema=CLUSTER,
    )
    by_cluster = pc.sort_indices(
        pa.table({"cluster": table["cluster"], "rank": np.arange(len(table))}),
        sort_keys=[("cluster", "ascending"), ("rank", "ascending")],
    )
    return _write(folder, table.take(by_cluster), len(head))


def _write(folder: Folder, table: pa.Table, clusters: int) -> Outcome:
    gone = table.filter(table["reason"].is_valid()).select(DROPPED).sort_by("number")
    records = (
        write_table(folder, "clusters/part-00000.parquet", table),
        write_numbers(folder, "dropped/part-00000.parquet", gone),
    )
    return Outcome(outputs=records, facts={"clusters": clusters})


def _accepted(folder: Folder, name: str) -> pa.Table:
    with folder.open(name) as file:
        return pq.read_table(file, columns=["first", "second", "jaccard"], filters=[("accepted", "=", True)])
