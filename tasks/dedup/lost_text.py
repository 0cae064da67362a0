"""Text of dropped near duplicates that the documents kept instead do not have.

A word of a dropped document counts as lost if none of the 3-grams of words that contain it occurs in the kept document.
Exact duplicates lose nothing: their texts are equal after normalisation. The measurement changes no document.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.shards import write_numbers
from tasks.dedup.document_index import Corpus, Group, group_of, look_up, read_range
from tasks.dedup.lsh import distinct_pairs
from tasks.dedup.settings import WORD_NGRAM, word_shingles
from tasks.dedup.shingle_exchange import met_sets, shingled, write_sets

LOST = pa.schema(
    [
        ("number", pa.int64()),  # of the dropped document
        ("characters", pa.int64()),
        ("lost", pa.int64()),  # of these, outside all 3-grams of the kept document
    ]
)


def share_kept(folder: Folder, name: str, index: int, corpus: Corpus, removed: Sequence[str]) -> Outcome:
    """Write the 3-grams of the kept documents of one group for the groups of the documents dropped for them.

    Reads `removed`, with the schema `EXACT`; writes `kept_sets/part-NNNNN.parquet`.
    """
    groups, settings = corpus
    group = groups[index]
    table = _read_removed(folder, removed, "kept", group)
    kept, owners = table["kept"].to_numpy(), group_of(groups, table["dropped"].to_numpy())
    wanted = distinct_pairs(np.stack([kept, owners], axis=1))
    record = write_sets(folder, f"kept_sets/part-{index:05d}.parquet", group, wanted, word_shingles(settings))
    return Outcome(outputs=(record,))


def measure_lost(
    folder: Folder, name: str, index: int, corpus: Corpus, removed: Sequence[str], kept_sets: Sequence[str]
) -> Outcome:
    """Count the lost characters of the dropped near duplicates of one group into `lost/part-NNNNN.parquet`."""
    from tasks.dedup import kernels

    groups, settings = corpus
    group = groups[index]
    table = _read_removed(folder, removed, "dropped", group)
    dropped, kept = table["dropped"].to_numpy(), table["kept"].to_numpy()
    if not len(dropped):
        return Outcome(facts={"lost_characters": 0})
    share = np.ones(len(dropped), dtype=np.float64)
    own = shingled(group, dropped, word_shingles(settings), ordered=True)
    for pairs, one, other, firsts, seconds in met_sets(folder, own, kept_sets, index, groups, dropped, kept):
        share[pairs] = kernels.uncovered(*one, *other, firsts, seconds, WORD_NGRAM)
    characters = look_up(folder, groups, dropped, ["length"])["length"].to_numpy()
    lost = np.rint(characters * share).astype(np.int64)
    output = pa.table({"number": dropped, "characters": characters, "lost": lost}, schema=LOST)
    record = write_numbers(folder, f"lost/part-{index:05d}.parquet", output)
    return Outcome(outputs=(record,), facts={"lost_characters": int(lost.sum())})


def _read_removed(folder: Folder, names: Sequence[str], column: str, group: Group) -> pa.Table:
    """Dropped near duplicates, in ascending order, whose number in a column is of the group."""
    parts = [read_range(folder, name, column, group.low, group.high) for name in names]
    return pa.concat_tables(parts).sort_by("dropped")
