"""Documents to documents without runs of words that occur earlier in the corpus.

Earlier is a lower number, `shard << 32 | row`, or an earlier word of the same document. A word that is removed stays in
the first occurrence of its n-gram, or where that one repeats another. The stages `anchors` and `grams` write files in
the order of the hashes, and `repeated` and `first` read a range of hashes of each.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome, output_names
from tasks.clean.token_counts import count_tokens
from tasks.core.runner import Runner
from tasks.core.shards import (
    CLEAN,
    commit_rows,
    in_groups,
    read_rows,
    read_table,
    rejected_row,
    write_numbers,
    write_table,
)
from tasks.core.sorted_arrays import isin_sorted
from tasks.core.step import Step
from tasks.core.tokenizer_file import TokenizerFile, tokenizer_file
from tasks.substrings.grams import anchors_of, cut_spans, grams_near, repeated, without
from tasks.substrings.settings import SubstringSettings

VERSION = 2
GROUP_ROWS, GROUP_BYTES, MAX_GROUPS = 1 << 14, 64 << 20, 512
BATCH_TEXTS = 256
MAX_HASHES = 1 << 24  # that are compared in memory at a time
ANCHOR = pa.schema([("hash", pa.int64()), ("count", pa.int64())])
GRAM = pa.schema([("hash", pa.int64()), ("low", pa.int64()), ("number", pa.int64()), ("position", pa.int64())])
CUTS = pa.schema([("id", pa.string()), ("url", pa.string()), ("start", pa.int64()), ("end", pa.int64())])


def substrings(
    root: Folder,
    documents: Manifest,
    settings: SubstringSettings,
    runner: Runner,
    *,
    tokenizer: Manifest | None = None,
    min_tokens: int = 0,
) -> Manifest:
    """Remove all but the first occurrence of repeated runs of words into `substrings/`.

    `id`, `url` and `split` stay. The tokens of a changed text are counted again, with the tokenizer of the cleaning,
    and a text with fewer than `min_tokens` is rejected.
    """
    step = Step(
        root,
        "substrings",
        version=VERSION,
        parameters={"min_words": settings.min_words, "min_tokens": min_tokens},
        inputs={"documents": documents} | ({"tokenizer": tokenizer} if tokenizer else {}),
        packages=("tokenizers", "unicodedata"),
    )
    if done := runner.finished(step):
        return done
    records = documents.outputs
    cuts = in_groups(records, GROUP_ROWS, GROUP_BYTES, MAX_GROUPS) if records else []
    groups = [tuple((shard, records[shard].name) for shard in cut) for cut in cuts]
    source, words = root / documents.folder, settings.min_words
    anchors = runner.batches(step, "anchors", groups, find_anchors, source, words)
    ranges, files = _ranges(anchors), output_names(anchors)
    found = runner.batches(step, "repeated", range(ranges), find_repeated, ranges, files)
    common = tuple(record for outcome in found for record in outcome.outputs)
    grams = runner.batches(step, "grams", groups, hash_grams, source, common, words)
    ranges, files = _ranges(grams), output_names(grams)
    marked = runner.batches(step, "first", range(ranges), mark_repeated, ranges, files)
    shards = [(shard, record.name) for shard, record in enumerate(records)]
    options = (source, output_names(marked), words, min_tokens, tokenizer and tokenizer_file(root, tokenizer))
    # The other files are intermediate: the manifest does not name them, so they are removed.
    return step.commit(Outcome.total(runner.batches(step, "part", shards, cut_part, *options)))


def find_anchors(
    folder: Folder, name: str, shards: Sequence[tuple[int, str]], source: Folder, min_words: int
) -> Outcome:
    """Count the anchors of a group of shards."""
    found = [np.zeros(0, dtype=np.int64)]
    for _, shard in shards:
        with source.open(shard) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH_TEXTS, columns=["text"]):
                texts = pa.chunked_array([batch["text"]])
                found += [hashes for _, hashes in anchors_of(texts, min_words)]
    hashes, counts = np.unique(np.concatenate(found), return_counts=True)
    return Outcome(
        outputs=(write_numbers(folder, f"anchors/{name}.parquet", pa.table([hashes, counts], schema=ANCHOR)),)
    )


def find_repeated(folder: Folder, name: str, part: int, ranges: int, anchors: Sequence[str]) -> Outcome:
    """Write the hashes of the anchors that occur twice, in one range of hashes, ascending."""
    table = pa.concat_tables([_range(folder, file, part, ranges) for file in anchors] or [ANCHOR.empty_table()])
    total = table.group_by("hash").aggregate([("count", "sum")])
    hashes = total.filter(pc.greater(total["count_sum"], 1)).sort_by("hash").select(["hash"])
    return Outcome(outputs=(write_numbers(folder, f"common/{name}.parquet", hashes),))


def hash_grams(
    folder: Folder,
    name: str,
    shards: Sequence[tuple[int, str]],
    source: Folder,
    common: tuple[FileRecord, ...],
    min_words: int,
) -> Outcome:
    """Write the exact hashes of the n-grams around repeated anchors."""
    known = _load(folder.url, common)
    columns: list[npt.NDArray[np.int64]] = [np.zeros((0, 4), dtype=np.int64)]
    for shard, file_name in shards:
        row = shard << 32
        with source.open(file_name) as file:
            for batch in pq.ParquetFile(file).iter_batches(BATCH_TEXTS, columns=["text"]):
                anchors = anchors_of(pa.chunked_array([batch["text"]]), min_words)
                for index, (positions, hashes) in enumerate(anchors):
                    near = positions[isin_sorted(hashes, known)]
                    if len(near):
                        grams = grams_near(batch["text"][index].as_py(), near, min_words)
                        number = np.full(len(grams.positions), row + index)
                        columns.append(np.column_stack([grams.keys, number, grams.positions]))
                row += batch.num_rows
    rows = np.concatenate(columns)
    rows = rows[np.lexsort(rows.T[::-1])]
    return Outcome(outputs=(write_numbers(folder, f"grams/{name}.parquet", pa.table([*rows.T], schema=GRAM)),))


def mark_repeated(folder: Folder, name: str, part: int, ranges: int, grams: Sequence[str]) -> Outcome:
    """Write number and position of the n-grams that are not the first of their kind, in one range of hashes."""
    table = pa.concat_tables([_range(folder, file, part, ranges) for file in grams] or [GRAM.empty_table()])
    keys, low, numbers, positions = (table[column].to_numpy() for column in GRAM.names)
    later = repeated(np.column_stack([keys, low]), numbers, positions)
    marked = pa.table({"number": numbers[later], "position": positions[later]})
    marked = marked.sort_by([("number", "ascending"), ("position", "ascending")])
    return Outcome(outputs=(write_numbers(folder, f"marked/{name}.parquet", marked),))


def cut_part(
    folder: Folder,
    name: str,
    shard: tuple[int, str],
    source: Folder,
    marked: Sequence[str],
    min_words: int,
    min_tokens: int,
    tokenizer: TokenizerFile | None,
) -> Outcome:
    """Cut the repeated runs out of one shard; runs in a worker."""
    number, file_name = shard
    positions = _positions(folder, marked, number << 32, (number + 1) << 32)
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    cut_rows: list[dict[str, Any]] = []
    facts = Counter(documents_changed=0, spans_removed=0, characters_removed=0)
    for place, row in enumerate(read_rows(source, file_name), start=number << 32):
        if place not in positions:
            kept.append(row)
            continue
        cuts = cut_spans(row["text"], positions[place], min_words)
        text = without(row["text"], cuts)
        [tokens] = count_tokens([text], tokenizer)
        cut_rows += [{"id": row["id"], "url": row["url"], "start": start, "end": end} for start, end in cuts]
        facts.update(spans_removed=len(cuts), characters_removed=len(row["text"]) - len(text))
        detail = f"{len(cuts)} runs of at least {min_words} words that occur earlier"
        if not text:
            rejected.append(rejected_row(row, "only_repeated", f"{detail}; nothing is left"))
        elif tokens < min_tokens:
            rejected.append(rejected_row(row, "too_short", f"{detail}; {tokens} tokens left of {min_tokens} expected"))
        else:
            facts["documents_changed"] += 1
            kept.append({**row, "text": text, "tokens": tokens})
    outcome = commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, dict(facts))
    audit = (write_table(folder, f"cuts/{name}.parquet", pa.Table.from_pylist(cut_rows, CUTS)),) if cut_rows else ()
    return outcome.model_copy(update={"audit": audit})


def _positions(folder: Folder, marked: Sequence[str], low: int, high: int) -> dict[int, npt.NDArray[np.int64]]:
    """Ascending positions of the repeated n-grams of each document with a number in [low, high)."""
    wanted = [("number", ">=", low), ("number", "<", high)]
    table = pa.concat_tables(read_table(folder, name, filters=wanted) for name in marked).sort_by(
        [("number", "ascending"), ("position", "ascending")]
    )
    numbers, starts = np.unique(table["number"].to_numpy(), return_index=True)
    return dict(zip(numbers.tolist(), np.split(table["position"].to_numpy(), starts[1:]), strict=False))


def _ranges(outcomes: Sequence[Outcome]) -> int:
    """Number of ranges of hashes, a power of two, so that each fits in memory."""
    rows = sum(outcome.outputs[0].rows or 0 for outcome in outcomes)
    return 1 << (rows // MAX_HASHES).bit_length()


def _range(folder: Folder, name: str, part: int, ranges: int) -> pa.Table:
    """Rows of a file whose hash is in one of equal ranges of int64; other row groups are not read."""
    size = 2**64 // ranges
    low = part * size - 2**63
    return read_table(folder, name, filters=[("hash", ">=", low), ("hash", "<=", low + size - 1)])


@functools.lru_cache(maxsize=2)
def _load(url: str, common: tuple[FileRecord, ...]) -> npt.NDArray[np.int64]:
    """Hashes of all repeated anchors, ascending."""
    found = [read_table(Folder(url), record.name)["hash"].to_numpy() for record in common]
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])
