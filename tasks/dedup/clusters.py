"""Clusters of verified pairs and exact copies, and the choice of the kept members.

One batch processes all documents of a part, of which only those with a duplicate are in memory: some 500 bytes each.
There is one part below `components.MAX_EDGES` edges.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.manifest import Outcome
from tasks.core.shards import read_table, write_table
from tasks.core.storage import Folder
from tasks.dedup.document_index import Group, Numbers, first_previous, group_of, look_up, ranks, write_numbers
from tasks.dedup.exact import EXACT
from tasks.dedup.settings import Policy

CLUSTER = pa.schema(
    [
        ("cluster", pa.string()),  # id of the cluster's best-ranked member
        ("id", pa.string()),
        ("url", pa.string()),
        ("number", pa.int64()),  # shard << 32 | row
        ("earlier", pa.int32()),  # index of its run in `dedup.previous`; null: document of this crawl
        ("reason", pa.string()),  # exact_duplicate, near_duplicate, …_earlier; null: it is kept
        ("kept_id", pa.string()),
        ("kept_url", pa.string()),
        ("jaccard", pa.float64()),  # exact, to the kept one; null: not compared (policy `connected`)
    ]
)
REASONS = ("exact_duplicate", "near_duplicate", "exact_duplicate_earlier", "near_duplicate_earlier")
DROPPED = ["number", "reason", "kept_url", "jaccard"]


class Edges(NamedTuple):
    """Verified pairs of documents, given by rank: `better < worse`."""

    better: Numbers
    worse: Numbers
    jaccard: npt.NDArray[np.float64]


class Survivors(NamedTuple):
    """Document kept instead of each document, by rank."""

    kept: Numbers
    """[documents] rank of the kept document; the document's own rank if it is kept."""
    jaccard: npt.NDArray[np.float64]
    """[documents] similarity to the kept document; nan if the two were not compared."""


def choose_survivors(edges: Edges, components: Numbers, policy: Policy, fixed: int = 0) -> Survivors:
    """Choose the document that is kept instead of each document, from verified pairs and components [documents].

    `greedy`, and `containment` by fewer edges, visit the documents from the best rank down and drop one if it is
    verified against a kept one: the most similar, then the best-ranked of these. `connected` keeps the best-ranked
    member of each component. The first `fixed` documents by rank are always kept; no edge connects two of them.
    """
    count = len(components)
    order = np.lexsort((edges.better, edges.worse))
    better, worse, jaccard = (column[order] for column in edges)
    if policy != "connected":
        from tasks.dedup import kernels

        return Survivors(*kernels.greedy(count, worse, better, jaccard))
    _, first, inverse = np.unique(components, return_index=True, return_inverse=True)
    kept = first[inverse]
    kept[:fixed] = np.arange(fixed)
    similarity = np.where(kept == np.arange(count), 1.0, np.nan)
    compared = better == kept[worse]
    similarity[worse[compared]] = jaccard[compared]
    return Survivors(kept, similarity)


def components_of(count: int, one: Numbers, other: Numbers) -> Numbers:
    """Number of the connected component of each of `count` documents, by the edges `one`-`other`."""
    # Imported here: it takes 0.1 s, which would delay the start of every command of the flows.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)


class Part(NamedTuple):
    """Files with the edges of one part of the duplicates."""

    number: int
    exact: tuple[str, ...]
    pairs: tuple[str, ...]


def find_clusters(folder: Folder, name: str, part: Part, policy: Policy, groups: Sequence[Group]) -> Outcome:
    """Cluster the verified duplicates of a part.

    Writes `clusters/part-NNNNN.parquet`, a row per member in order of rank; `dropped/part-NNNNN.parquet`, a row per
    dropped document in ascending order of number; and `removed/part-NNNNN.parquet`, in the same order the number of
    each dropped near duplicate and of the document kept instead.
    """
    exact, pairs = part.exact, part.pairs
    copies = pa.concat_tables([read_table(folder, file) for file in exact])
    near = pa.concat_tables([_accepted(folder, file) for file in pairs])
    ends = [copies["dropped"], copies["kept"], near["first"], near["second"]]
    numbers = np.unique(np.concatenate([column.to_numpy() for column in ends]))
    if not len(numbers):
        return _write(folder, part.number, CLUSTER.empty_table(), EXACT.empty_table(), 0)
    documents = look_up(folder, groups, numbers, ["id", "url", "length"])
    rank = ranks(groups, numbers, documents)
    order = np.argsort(rank)
    dropped, kept, first, second = (rank[np.searchsorted(numbers, column.to_numpy())] for column in ends)
    components = components_of(len(numbers), np.append(first, dropped), np.append(second, kept))
    is_previous = numbers[order] >= first_previous(groups)
    chosen = choose_survivors(
        Edges(first, second, near["jaccard"].to_numpy()), components, policy, int(is_previous.sum())
    )
    source = np.arange(len(numbers))
    source[dropped] = kept  # an exact copy shares the result of the document that it repeats
    survivors, similarity = chosen.kept[source], chosen.jaccard[source]
    is_kept = survivors == np.arange(len(numbers))
    is_near = np.ones(len(numbers), dtype=np.int64)
    is_near[dropped[survivors[dropped] == kept]] = 0
    _, best = np.unique(components, return_index=True)
    documents, numbers, where = documents.take(order).combine_chunks(), numbers[order], group_of(groups, numbers[order])
    previous = np.array([-1 if group.previous is None else group.previous for group in groups])[where]
    ids, urls = documents["id"], documents["url"]
    table = pa.table(
        {
            "cluster": ids.take(pa.array(best[components])),
            "id": ids,
            "url": urls,
            "number": numbers,
            "earlier": pa.array(previous, pa.int32(), mask=previous < 0),
            "reason": pa.array(REASONS).take(pa.array(is_near + 2 * is_previous[survivors], mask=is_kept)),
            "kept_id": ids.take(pa.array(survivors)),
            "kept_url": urls.take(pa.array(survivors)),
            "jaccard": pa.array(similarity, mask=np.isnan(similarity)),
        },
        schema=CLUSTER,
    )
    by_cluster = pc.sort_indices(
        pa.table({"cluster": table["cluster"], "rank": np.arange(len(table))}),
        sort_keys=[("cluster", "ascending"), ("rank", "ascending")],
    )
    near_dropped = np.flatnonzero(~is_kept & (is_near == 1))
    near_dropped = near_dropped[np.argsort(numbers[near_dropped])]
    removed = pa.table({"dropped": numbers[near_dropped], "kept": numbers[survivors[near_dropped]]}, schema=EXACT)
    return _write(folder, part.number, table.take(by_cluster), removed, len(best))


def _write(folder: Folder, part: int, table: pa.Table, removed: pa.Table, clusters: int) -> Outcome:
    dropped_rows = table.filter(table["reason"].is_valid()).select(DROPPED).sort_by("number")
    records = (
        write_table(folder, f"clusters/part-{part:05d}.parquet", table),
        write_numbers(folder, f"dropped/part-{part:05d}.parquet", dropped_rows),
        write_numbers(folder, f"removed/part-{part:05d}.parquet", removed),
    )
    return Outcome(outputs=records, facts={"clusters": clusters})


def _accepted(folder: Folder, name: str) -> pa.Table:
    with folder.open(name) as file:
        return pq.read_table(file, columns=["first", "second", "jaccard"], filters=[("accepted", "=", True)])
