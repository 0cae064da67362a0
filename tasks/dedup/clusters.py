"""Clusters of verified pairs and exact copies, and the choice of the kept members.

One batch processes all documents of a part, of which only those with a duplicate are in memory: some 250 bytes each.
There is one part below `components.MAX_EDGES` edges.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import read_table, write_numbers, write_table
from tasks.core.sorted_arrays import sorted_unique
from tasks.dedup.document_index import Group, Numbers, first_previous, group_of, look_up, ranks
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
PIECE = 1 << 16  # members whose strings are in memory: whole row groups of both files


class Edges(NamedTuple):
    """Verified pairs of documents, given by rank: `better < worse`."""

    better: Numbers
    worse: Numbers
    jaccard: npt.NDArray[np.float64]


class Survivors(NamedTuple):
    """Document kept instead of each document, by rank."""

    kept: Numbers  # [documents] rank of the kept document; the document's own rank if it is kept
    jaccard: npt.NDArray[np.float64]  # [documents] similarity to the kept document; nan if the two were not compared


def choose_survivors(edges: Edges, best: Numbers, policy: Policy, fixed: int = 0) -> Survivors:
    """Choose the document that is kept instead of each document, from verified pairs and `components_of` them.

    `greedy`, and `containment` by fewer edges, visit the documents from the best rank down and drop one if it is
    verified against a kept one: the most similar, then the best-ranked of these. `connected` keeps the best-ranked
    member of each component. The first `fixed` documents by rank are always kept; no edge connects two of them.
    """
    count = len(best)
    order = np.lexsort((edges.better, edges.worse))
    better, worse, jaccard = (column[order] for column in edges)
    if policy != "connected":
        from tasks.dedup import kernels

        return Survivors(*kernels.greedy(count, worse, better, jaccard))
    kept = best.copy()
    kept[:fixed] = np.arange(fixed)
    similarity = np.where(kept == np.arange(count), 1.0, np.nan)
    compared = better == kept[worse]
    similarity[worse[compared]] = jaccard[compared]
    return Survivors(kept, similarity)


def components_of(count: int, edges: Iterable[tuple[Numbers, Numbers]]) -> Numbers:
    """[count] smallest member of the connected component of each document, by the ends of edges."""
    from tasks.dedup import kernels

    parent = np.arange(count)
    for one, other in edges:
        kernels.unite(parent, one, other)
    return np.asarray(kernels.roots(parent, np.arange(count)))


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
    accepted = [("accepted", "=", True)]
    near = pa.concat_tables([read_table(folder, file, ["first", "second", "jaccard"], accepted) for file in pairs])
    ends = [copies["dropped"], copies["kept"], near["first"], near["second"]]
    numbers = sorted_unique(np.concatenate([column.to_numpy() for column in ends]))
    if not len(numbers):
        none = CLUSTER.empty_table()
        return _write(folder, part.number, [none], [none.select(DROPPED)], EXACT.empty_table(), 0)
    documents = look_up(folder, groups, numbers, ["id", "url", "length"])
    rank = ranks(groups, numbers, documents)
    dropped, kept, first, second = (rank[np.searchsorted(numbers, column.to_numpy())] for column in ends)
    best = components_of(len(numbers), [(first, second), (dropped, kept)])
    order = np.argsort(rank)
    numbers = numbers[order]
    is_previous = numbers >= first_previous(groups)
    chosen = choose_survivors(Edges(first, second, near["jaccard"].to_numpy()), best, policy, int(is_previous.sum()))
    source = np.arange(len(numbers))
    source[dropped] = kept  # an exact copy shares the result of the document that it repeats
    survivors, similarity = chosen.kept[source], chosen.jaccard[source]
    is_kept = survivors == np.arange(len(numbers))
    is_near = np.ones(len(numbers), dtype=bool)
    is_near[dropped[survivors[dropped] == kept]] = False
    ids, urls = documents["id"], documents["url"]  # by number, not by rank
    previous_of = np.array([-1 if group.previous is None else group.previous for group in groups])

    def rows(some: Numbers) -> pa.Table:
        """Members with these ranks; strings of all members together would take most of the memory."""
        previous, instead = previous_of[group_of(groups, numbers[some])], survivors[some]
        columns = {
            "cluster": ids.take(order[best[some]]),
            "id": ids.take(order[some]),
            "url": urls.take(order[some]),
            "number": numbers[some],
            "earlier": pa.array(previous, pa.int32(), mask=previous < 0),
            "reason": pa.array(REASONS).take(pa.array(is_near[some] + 2 * is_previous[instead], mask=is_kept[some])),
            "kept_id": ids.take(order[instead]),
            "kept_url": urls.take(order[instead]),
            "jaccard": pa.array(similarity[some], mask=np.isnan(similarity[some])),
        }
        return pa.table(columns, schema=CLUSTER)

    heads = np.flatnonzero(best == np.arange(len(best)))
    place = np.zeros(len(best), dtype=np.int64)  # of a cluster among all, by the id of its best member
    place[heads] = pc.rank(ids.take(order[heads]), sort_keys="ascending", tiebreaker="dense").to_numpy()
    by_cluster = np.argsort(place[best], kind="stable")
    by_number = np.flatnonzero(~is_kept)
    by_number = by_number[np.argsort(numbers[by_number])]
    near_dropped = by_number[is_near[by_number]]
    removed = pa.table({"dropped": numbers[near_dropped], "kept": numbers[survivors[near_dropped]]}, schema=EXACT)
    members = map(rows, _pieces(by_cluster))
    dropped_members = (rows(piece).select(DROPPED) for piece in _pieces(by_number))
    return _write(folder, part.number, members, dropped_members, removed, len(heads))


def _pieces(some: Numbers) -> Iterator[Numbers]:
    """Yield pieces of an array, at least one, each of whole row groups."""
    for start in range(0, max(len(some), 1), PIECE):
        yield some[start : start + PIECE]


def _write(
    folder: Folder,
    part: int,
    members: Iterable[pa.Table],
    dropped: Iterable[pa.Table],
    removed: pa.Table,
    clusters: int,
) -> Outcome:
    records = (
        write_table(folder, f"clusters/part-{part:05d}.parquet", members),
        write_numbers(folder, f"dropped/part-{part:05d}.parquet", dropped),
        write_numbers(folder, f"removed/part-{part:05d}.parquet", removed),
    )
    return Outcome(outputs=records, facts={"clusters": clusters})
