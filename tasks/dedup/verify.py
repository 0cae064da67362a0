"""Verification of candidate pairs: exact similarity, and containment, by the shingle sets of the whole texts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import read_table, write_numbers, write_table
from tasks.core.sorted_arrays import sorted_unique
from tasks.dedup.document_index import Corpus, Group, Numbers, look_up, ranks
from tasks.dedup.lsh import CANDIDATE, distinct_pairs
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingle_exchange import in_batches, met_sets, read_sets
from tasks.dedup.shingles import Sets

PAIR = pa.schema(
    [
        ("first", pa.int64()),  # number of the document that ranks better
        ("second", pa.int64()),
        ("first_id", pa.string()),
        ("second_id", pa.string()),
        ("jaccard", pa.float64()),  # exact
        ("accepted", pa.bool_()),  # jaccard >= threshold
    ]
)
CONTAINED_PAIR = PAIR.append(
    pa.field("containment", pa.float64())  # of the second in the first; null below the threshold
)
MAX_HASHES = 1 << 25  # of the first members of pairs, in memory at a time: 256 MB

Similarities = npt.NDArray[np.float64]


class Overlap(NamedTuple):
    """Sizes of the shingle sets of pairs of documents."""

    common: Numbers  # [pairs] members of both sets
    first: Numbers  # [pairs] members of the set of the first document
    second: Numbers  # [pairs] members of the set of the second document


def verify_group(
    folder: Folder, name: str, index: int, corpus: Corpus, unique: Sequence[str], sets: Sequence[str]
) -> Outcome:
    """Verify the pairs of one group into `pairs/part-NNNNN.parquet`.

    With the policy `containment`, into `similar/part-NNNNN.parquet`, for `check_containment`; and into
    `accepted/part-NNNNN.parquet`, with the schema of the candidates, the pairs that reach the threshold.
    """
    groups, settings = corpus
    table = read_table(folder, unique[index])
    first, second = table["first"].to_numpy(), table["second"].to_numpy()
    similarity = similarities(overlap_of(folder, index, groups, sets, first, second), settings)
    accepted = similarity >= settings.threshold
    output = _by_rank(folder, groups, first, second).append_column("jaccard", pa.array(similarity))
    output = output.append_column("accepted", pa.array(accepted)).cast(PAIR)
    if settings.policy != "containment":
        record = write_table(folder, f"pairs/part-{index:05d}.parquet", output)
        return Outcome(outputs=(record,), facts={"candidate_pairs": len(first), "accepted_pairs": int(accepted.sum())})
    one = np.stack([first, second], axis=1)[accepted]
    both = distinct_pairs(np.concatenate([one, one[:, ::-1]]))
    pairs = pa.table({"first": both[:, 0], "second": both[:, 1]}, schema=CANDIDATE)
    records = (
        write_table(folder, f"similar/part-{index:05d}.parquet", output),
        write_numbers(folder, f"accepted/part-{index:05d}.parquet", pairs),
    )
    return Outcome(outputs=records, facts={"candidate_pairs": len(first), "similar_pairs": int(accepted.sum())})


def check_containment(
    folder: Folder, name: str, index: int, corpus: Corpus, similar: Sequence[str], sets: Sequence[str]
) -> Outcome:
    """Accept the similar pairs whose better-ranked document holds the other one, into `pairs/part-NNNNN.parquet`.

    `similar` are the verified pairs of each group, `sets` the 3-grams of words of its documents, as of `write_sets`.
    """
    table = read_table(folder, similar[index])
    first, second = table["first"].to_numpy(), table["second"].to_numpy()
    rows = np.flatnonzero(table["accepted"].to_numpy())
    low, high = np.minimum(first, second)[rows], np.maximum(first, second)[rows]
    overlap = overlap_of(folder, index, corpus.groups, sets, low, high)
    sizes = np.where(second[rows] == high, overlap.second, overlap.first)  # the second of the pair ranks worse
    containment = np.full(len(first), np.nan)
    containment[rows] = overlap.common / np.maximum(sizes, 1)
    accepted = containment >= corpus.settings.containment
    table = table.set_column(table.column_names.index("accepted"), "accepted", pa.array(accepted))
    table = table.append_column("containment", pa.array(containment, mask=np.isnan(containment)))
    record = write_table(folder, f"pairs/part-{index:05d}.parquet", table.cast(CONTAINED_PAIR))
    return Outcome(outputs=(record,), facts={"accepted_pairs": int(accepted.sum())})


def overlap_of(
    folder: Folder, index: int, groups: Sequence[Group], sets: Sequence[str], first: Numbers, second: Numbers
) -> Overlap:
    """Sizes of the sets of pairs of documents: `first` of the group with this index, `second` of any other.

    `sets` has the file of each group, as of `write_sets`.
    """
    overlap = Overlap(*np.zeros((3, len(first)), dtype=np.int64))
    own = in_batches(read_sets(folder, sets[index], index), MAX_HASHES)
    for pairs, one, other, firsts, seconds in met_sets(folder, own, sets, index, groups, first, second):
        for total, found in zip(overlap, compare(one, other, firsts, seconds), strict=True):
            total[pairs] = found
    return overlap


def compare(one: Sets, other: Sets, firsts: Numbers, seconds: Numbers) -> Overlap:
    """Sizes of pairs of sets, given by their places."""
    from tasks.dedup import kernels

    common = kernels.common(*one, *other, firsts, seconds)
    return Overlap(common, np.diff(one.starts)[firsts], np.diff(other.starts)[seconds])


def similarities(overlap: Overlap, settings: DedupSettings) -> Similarities:
    """Similarities [pairs] of pairs of sets."""
    common, *sizes = overlap
    denominators = {"union": sizes[0] + sizes[1] - common, "min": np.minimum(*sizes), "max": np.maximum(*sizes)}
    return common / np.maximum(denominators[settings.jaccard], 1)


def _by_rank(folder: Folder, groups: Sequence[Group], first: Numbers, second: Numbers) -> pa.Table:
    """First four columns of the pairs, with the better-ranked document first."""
    numbers = sorted_unique(np.concatenate([first, second]))
    if not len(numbers):
        return PAIR.empty_table().select(PAIR.names[:4])
    documents = look_up(folder, groups, numbers, ["id", "length"])
    rank = ranks(groups, numbers, documents)
    positions = np.stack([np.searchsorted(numbers, first), np.searchsorted(numbers, second)])
    positions = np.where(rank[positions[0]] < rank[positions[1]], positions, positions[::-1])
    ids = documents["id"].combine_chunks()
    return pa.table(
        {
            "first": numbers[positions[0]],
            "second": numbers[positions[1]],
            "first_id": pc.take(ids, pa.array(positions[0])),
            "second_id": pc.take(ids, pa.array(positions[1])),
        }
    )
