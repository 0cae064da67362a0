"""Candidate pairs -> pairs with their exact Jaccard similarity.

The whole texts are shingled again and compared as sets; only documents that are in a pair are read.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dedup.pairs import Numbers
from tasks.dedup.settings import DedupSettings
from tasks.dedup.shingles import Hashes, WordHashes, jaccard, shingle_set
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
ROW = (1 << 32) - 1


def verify_shard(
    folder: Folder,
    name: str,
    shard: int,
    source: Folder,
    shards: Sequence[str],
    candidates: Sequence[str],
    settings: DedupSettings,
) -> Outcome:
    """Verify the pairs whose better member lies in this shard: `pairs/part-NNNNN.parquet`."""
    first, second = read_candidates(folder, candidates, shard)
    cache = WordHashes()
    ids: dict[int, str] = {}
    similarity = np.zeros(len(first), dtype=np.float64)
    pivots = _load(source, shards, shard, first, settings.ngram, cache, ids)
    others_shard = second >> 32
    for other in np.unique(others_shard):  # one other shard in memory at a time
        here = np.flatnonzero(others_shard == other)
        partners = _load(source, shards, int(other), second[here], settings.ngram, cache, ids)
        for place in here:
            similarity[place] = jaccard(pivots[int(first[place])], partners[int(second[place])])
    accepted = similarity >= settings.threshold
    table = pa.table(
        {
            "first": first,
            "second": second,
            "first_id": [ids[number] for number in first.tolist()],
            "second_id": [ids[number] for number in second.tolist()],
            "jaccard": similarity,
            "accepted": accepted,
        },
        schema=PAIR,
    )
    record = write_table(folder, f"pairs/part-{name.rpartition('-')[2]}.parquet", table)
    return Outcome(outputs=(record,), facts={"candidate_pairs": len(first), "accepted_pairs": int(accepted.sum())})


def read_candidates(folder: Folder, candidates: Sequence[str], shard: int) -> tuple[Numbers, Numbers]:
    """Distinct candidate pairs of all bands whose better member lies in a shard, sorted."""
    bounds = [("first", ">=", shard << 32), ("first", "<", (shard + 1) << 32)]
    parts = []
    for name in candidates:
        with folder.open(name) as file:
            table = pq.read_table(file, filters=bounds)
        parts.append(np.stack([table["first"].to_numpy(), table["second"].to_numpy()], axis=1))
    pairs = np.unique(np.concatenate(parts), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _load(
    source: Folder,
    shards: Sequence[str],
    shard: int,
    numbers: Numbers,
    ngram: int,
    cache: WordHashes,
    ids: dict[int, str],
) -> dict[int, Hashes]:
    """Shingle sets of these documents of one shard, by number; notes their ids in `ids`."""
    wanted = np.unique(numbers)
    if not len(wanted):
        return {}
    table = read_table(source, shards[shard], ["id", "text"]).take(wanted & ROW)
    ids.update(zip(wanted.tolist(), table["id"].to_pylist(), strict=True))
    texts = zip(wanted.tolist(), table["text"], strict=True)
    return {number: shingle_set(text.as_py(), ngram, cache) for number, text in texts}
