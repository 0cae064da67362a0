"""Turn documents into tokens: Megatron `.bin/.idx` per split, and a table that leads each token back to its page.

Writes `tokens/{train,valid,test}/tokens.bin`, `tokens.idx` and `documents.parquet` (`start`, `end`: token offsets in
the split; `doc_id`, `url`), in the order of the shards and rows that come in. Each document ends with
`<|endoftext|>`; the same letters inside a text stay letters.
"""

import functools
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from gpt2train.data.indexed import token_dtype, write_index
from gpt2train.data.tokenizer import TOKENIZER, encode_ordinary, end_of_text_id, parse_tokenizer
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import REJECTED, read_rows, read_table, rejected_row, write_rows, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

SPLITS = ("train", "valid", "test")
AT_ONCE = 64  # documents encoded in one call: enough to keep the library busy, little enough memory
ENCODED = pa.schema([("doc_id", pa.string()), ("url", pa.string()), ("tokens", pa.int64())])
SIDECAR = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("doc_id", pa.string()), ("url", pa.string())])


class TokenizeSettings(Settings):
    """How documents become tokens."""

    append_end_of_text: bool = True
    """End each document with `<|endoftext|>`, so that the model learns where a text ends."""


def tokenize(
    root: Folder, documents: Manifest, tokenizer: Manifest, settings: TokenizeSettings, runner: Runner
) -> Manifest:
    """Encode all documents with the tokenizer of the run and write one token file pair per split.

    A split without documents gets a pair without documents. A row without text or without a split is rejected
    (`empty`, `no_split`).
    """
    inputs = {"documents": documents, "tokenizer": tokenizer}
    step = Step(
        root, "tokenize", version=1, parameters=settings, inputs=inputs, folder="tokens", packages=("tokenizers",)
    )
    if done := runner.finished(step):
        return done
    shards = [record.name for record in documents.outputs]
    tokenizer_file = tokenizer.output(TOKENIZER)
    place = (root / tokenizer.folder, tokenizer_file.name, tokenizer_file.sha256)
    encoded = runner.batches(step, "part", shards, encode_shard, root / documents.folder, place, settings)
    dtype = token_dtype(_tokenizer(*place).get_vocab_size()).name
    names = [record.name for outcome in encoded for record in outcome.outputs]
    # Joining copies bytes: a thread is enough, and no worker has to load anything.
    joined = runner.batches(step, "join", SPLITS, join_split, names, dtype, where="node")
    # The encoded shards were for this step alone: not named by the manifest, they are swept.
    return step.commit(Outcome.total([*(outcome.model_copy(update={"outputs": ()}) for outcome in encoded), *joined]))


def encode_shard(
    folder: Folder, name: str, shard: str, source: Folder, place: tuple[Folder, str, str], settings: TokenizeSettings
) -> Outcome:
    """Encode one shard: `encoded/<name>.<split>.bin` and a table of its documents, for each split."""
    tokenizer = _tokenizer(*place)
    dtype = token_dtype(tokenizer.get_vocab_size())
    end = [end_of_text_id(tokenizer)] if settings.append_end_of_text else []
    rows = list(read_rows(source, shard, ["id", "url", "text", "source", "split"]))
    rejected = [rejected_row(row, reason, detail) for row in rows for reason, detail in _faults(row)]
    outputs = []
    for split in SPLITS:
        mine = [row for row in rows if row["split"] == split and row["text"]]
        table: list[dict[str, Any]] = []
        target = f"encoded/{name}.{split}"
        with folder.writing(f"{target}.bin") as draft, draft.open("wb") as file:
            for start in range(0, len(mine), AT_ONCE):
                group = mine[start : start + AT_ONCE]
                for row, ids in zip(group, encode_ordinary(tokenizer, [r["text"] for r in group]), strict=True):
                    file.write(np.asarray(ids + end, dtype=dtype).data)
                    table.append({"doc_id": row["id"], "url": row["url"], "tokens": len(ids) + len(end)})
        outputs.append(folder.record(f"{target}.bin", rows=sum(row["tokens"] for row in table)))
        outputs.append(write_rows(folder, f"{target}.parquet", table, ENCODED))
    dropped = (write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else ()
    reasons = dict(sorted(Counter(row["reason"] for row in rejected).items()))
    return Outcome(
        outputs=tuple(outputs), rejected=dropped, seen=len(rows), kept=len(rows) - len(rejected), reasons=reasons
    )


def join_split(folder: Folder, name: str, split: str, encoded: Sequence[str], dtype: str) -> Outcome:
    """Join the encoded shards of a split, in order, to `<split>/tokens.bin`, `tokens.idx` and `documents.parquet`."""
    parts = [name.removesuffix(".bin") for name in encoded if name.endswith(f".{split}.bin")]
    table = pa.concat_tables([read_table(folder, f"{part}.parquet") for part in parts] or [ENCODED.empty_table()])
    lengths = table["tokens"].to_numpy()
    ends = np.cumsum(lengths, dtype=np.int64)
    with folder.writing(f"{split}/tokens.bin") as draft, draft.open("wb") as joined:
        for part in parts:
            with folder.open(f"{part}.bin") as file:
                shutil.copyfileobj(file, joined, 1 << 20)
    with folder.writing(f"{split}/tokens.idx") as draft:
        write_index(draft, lengths, dtype)
    columns = [pa.array(ends - lengths), pa.array(ends), table["doc_id"], table["url"]]
    sidecar = write_table(
        folder, f"{split}/documents.parquet", pa.Table.from_arrays(columns, schema=SIDECAR).combine_chunks()
    )
    total = int(ends[-1]) if len(ends) else 0
    records = (
        folder.record(f"{split}/tokens.bin", rows=total),
        folder.record(f"{split}/tokens.idx", rows=len(lengths)),
        sidecar,
    )
    return Outcome(outputs=records, facts={f"{split}_documents": len(lengths), f"{split}_tokens": total})


def _faults(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Why a row cannot be encoded: nothing, or one reason with a detail."""
    if not row["text"]:
        return [("empty", "a document without text has no tokens")]
    if row["split"] not in SPLITS:
        return [("no_split", f"split is {row['split']!r}, one of {', '.join(SPLITS)} expected")]
    return []


@functools.lru_cache(maxsize=1)
def _cached(url: str, name: str, sha256: str) -> Tokenizer:
    return parse_tokenizer(Folder(url).read_bytes(name).decode(), f"{url}/{name}")


def _tokenizer(folder: Folder, name: str, sha256: str) -> Tokenizer:
    """The tokenizer of the run, kept from batch to batch; its hash makes another file another entry."""
    return _cached(folder.url, name, sha256)
