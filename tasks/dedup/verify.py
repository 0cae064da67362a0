"""Candidate pairs -> pairs with their exact similarity, by the sets of shingles of the whole texts."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.dedup.collect import Numbered, read_sets
from tasks.dedup.groups import Group, Numbers, by_rank, group_of, look_up, member
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Sets
from tasks.shards import read_table, write_table
from tasks.steps import Outcome
from tasks.storage import Folder

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
MOST_HASHES = 1 << 25  # of first members in memory at a time: 256 MB

Similarities = npt.NDArray[np.float64]


def verify_group(
    folder: Folder,
    name: str,
    place: int,
    groups: Sequence[Group],
    unique: Sequence[str],
    sets: Sequence[str],
    settings: DedupSettings,
) -> Outcome:
    """Verify the pairs of one group: `pairs/part-NNNNN.parquet`."""
    table = read_table(folder, unique[place])
    first, second = table["first"].to_numpy(), table["second"].to_numpy()
    similarity = np.zeros(len(first), dtype=np.float64)
    for some in _first_members(folder, sets[place], place):
        here = np.flatnonzero(member(first, some.numbers))
        for source in np.unique(group_of(groups, second[here])).tolist():
            for others in read_sets(folder, sets[source], place):
                pairs = here[member(second[here], others.numbers)]
                similarity[pairs] = compare(some, others, first[pairs], second[pairs], settings)
    accepted = similarity >= settings.threshold
    output = _by_rank(folder, groups, first, second).append_column("jaccard", pa.array(similarity))
    output = output.append_column("accepted", pa.array(accepted)).cast(PAIR)
    record = write_table(folder, f"pairs/part-{place:05d}.parquet", output)
    return Outcome(outputs=(record,), facts={"candidate_pairs": len(first), "accepted_pairs": int(accepted.sum())})


def compare(one: Numbered, other: Numbered, first: Numbers, second: Numbers, settings: DedupSettings) -> Similarities:
    """Similarities of pairs of documents, given by number."""
    from tasks.dedup import kernels

    firsts, seconds = np.searchsorted(one.numbers, first), np.searchsorted(other.numbers, second)
    common = kernels.common(*one.sets, *other.sets, firsts, seconds)
    sizes = [np.diff(one.sets.starts)[firsts], np.diff(other.sets.starts)[seconds]]
    below = {"union": sizes[0] + sizes[1] - common, "min": np.minimum(*sizes), "max": np.maximum(*sizes)}
    return common / np.maximum(below[settings.jaccard], 1)


def _first_members(folder: Folder, name: str, place: int) -> Iterator[Numbered]:
    """The sets of a group's own documents, so many at a time as memory is set aside for."""
    held: list[Numbered] = []
    for piece in read_sets(folder, name, place):
        held.append(piece)
        if sum(len(some.sets.values) for some in held) >= MOST_HASHES:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(pieces: Sequence[Numbered]) -> Numbered:
    sizes = np.concatenate([np.diff(piece.sets.starts) for piece in pieces])
    values = [p.sets.values[p.sets.starts[0] : p.sets.starts[-1]] for p in pieces]
    starts = np.append(0, np.cumsum(sizes))
    return Numbered(np.concatenate([piece.numbers for piece in pieces]), Sets(np.concatenate(values), starts))


def _by_rank(folder: Folder, groups: Sequence[Group], first: Numbers, second: Numbers) -> pa.Table:
    """The first four columns of the pairs, the better-ranked document first."""
    numbers = np.unique(np.concatenate([first, second]))
    if not len(numbers):
        return PAIR.empty_table().select(PAIR.names[:4])
    documents = look_up(folder, groups, numbers, ["id", "length"])
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[by_rank(groups, numbers, documents)] = np.arange(len(numbers))
    places = np.stack([np.searchsorted(numbers, first), np.searchsorted(numbers, second)])
    places = np.where(rank[places[0]] < rank[places[1]], places, places[::-1])
    ids = documents["id"].combine_chunks()
    return pa.table(
        {
            "first": numbers[places[0]],
            "second": numbers[places[1]],
            "first_id": pc.take(ids, pa.array(places[0])),
            "second_id": pc.take(ids, pa.array(places[1])),
        }
    )
