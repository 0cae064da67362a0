"""Verification of candidate pairs: exact similarity by the shingle sets of the whole texts."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.manifest import Outcome
from tasks.core.shards import read_table, write_table
from tasks.core.storage import Folder
from tasks.dedup.document_index import Group, Numbers, group_of, isin_sorted, look_up, ranks
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingle_exchange import NumberedSets, read_sets
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
MAX_HASHES = 1 << 25  # of the first members of pairs, in memory at a time: 256 MB

Similarities = npt.NDArray[np.float64]


def verify_group(
    folder: Folder,
    name: str,
    index: int,
    groups: Sequence[Group],
    unique: Sequence[str],
    sets: Sequence[str],
    settings: DedupSettings,
) -> Outcome:
    """Verify the pairs of one group into `pairs/part-NNNNN.parquet`."""
    table = read_table(folder, unique[index])
    first, second = table["first"].to_numpy(), table["second"].to_numpy()
    similarity = np.zeros(len(first), dtype=np.float64)
    for some in _first_members(folder, sets[index], index):
        here = np.flatnonzero(isin_sorted(first, some.numbers))
        for source in np.unique(group_of(groups, second[here])).tolist():
            for others in read_sets(folder, sets[source], index):
                pairs = here[isin_sorted(second[here], others.numbers)]
                similarity[pairs] = compare(some, others, first[pairs], second[pairs], settings)
    accepted = similarity >= settings.threshold
    output = _by_rank(folder, groups, first, second).append_column("jaccard", pa.array(similarity))
    output = output.append_column("accepted", pa.array(accepted)).cast(PAIR)
    record = write_table(folder, f"pairs/part-{index:05d}.parquet", output)
    return Outcome(outputs=(record,), facts={"candidate_pairs": len(first), "accepted_pairs": int(accepted.sum())})


def compare(
    one: NumberedSets, other: NumberedSets, first: Numbers, second: Numbers, settings: DedupSettings
) -> Similarities:
    """Similarities [pairs] of pairs of documents, given by number."""
    from tasks.dedup import kernels

    firsts, seconds = np.searchsorted(one.numbers, first), np.searchsorted(other.numbers, second)
    common = kernels.common(*one.sets, *other.sets, firsts, seconds)
    sizes = [np.diff(one.sets.starts)[firsts], np.diff(other.sets.starts)[seconds]]
    denominators = {"union": sizes[0] + sizes[1] - common, "min": np.minimum(*sizes), "max": np.maximum(*sizes)}
    return common / np.maximum(denominators[settings.jaccard], 1)


def _first_members(folder: Folder, name: str, group: int) -> Iterator[NumberedSets]:
    """Sets of the documents of a group, at most `MAX_HASHES` members at a time."""
    held: list[NumberedSets] = []
    for piece in read_sets(folder, name, group):
        held.append(piece)
        if sum(len(some.sets.values) for some in held) >= MAX_HASHES:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(pieces: Sequence[NumberedSets]) -> NumberedSets:
    sizes = np.concatenate([np.diff(piece.sets.starts) for piece in pieces])
    values = [p.sets.values[p.sets.starts[0] : p.sets.starts[-1]] for p in pieces]
    starts = np.append(0, np.cumsum(sizes))
    return NumberedSets(np.concatenate([piece.numbers for piece in pieces]), Sets(np.concatenate(values), starts))


def _by_rank(folder: Folder, groups: Sequence[Group], first: Numbers, second: Numbers) -> pa.Table:
    """First four columns of the pairs, with the better-ranked document first."""
    numbers = np.unique(np.concatenate([first, second]))
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
