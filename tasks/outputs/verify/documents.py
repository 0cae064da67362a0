"""Documents of the token files, tokenised again and compared with their tokens, value by value."""

import random

import numpy as np
import pyarrow.parquet as pq

from gpt2train.data.encoder import PlainEncoder, Texts, with_end
from gpt2train.data.indexed import token_dtype
from gpt2train.data.tokenizer import end_of_text_id, vocab_size
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from gpt2train.store.output import Output
from tasks.core.shards import read_table
from tasks.core.tokenizer_file import read_tokenizer, tokenizer_record


def check_documents(output: Output, made: Manifest, count: int, seed: int) -> tuple[int, list[str]]:
    """Compare `count` random documents with their tokens; return the number of compared ones, and the differences.

    Raises:
        MissingInputError: The documents or the tokenizer are not in this output.
    """
    source, bpe = output.input(made, "documents"), output.input(made, "tokenizer")
    tokenizer = read_tokenizer(output.root / bpe.folder, tokenizer_record(bpe).name)
    end = end_of_text_id(tokenizer) if made.parameters["append_end_of_text"] else None
    dtype, encode = token_dtype(vocab_size(tokenizer)), PlainEncoder(tokenizer)
    folder, problems, compared = output.root / made.folder, [], 0
    for split, rows in _drawn(output.root / source.folder, source, count, seed).items():
        texts = Texts.of([text for _, text in rows])
        encoded = with_end(encode(texts), end, dtype, made.parameters.get("prefix", ()))
        expected = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
        found = _tokens(folder, made, split, {document for document, _ in rows}, dtype)
        for (document, _), ids in zip(rows, expected, strict=True):
            compared += 1
            stored = found.get(document, [])
            if any(np.array_equal(ids, one) for one in stored):
                continue
            where = f"{made.folder}/{split}: document {document}"
            problems.append(f"{where}: {_difference(stored[0], ids)}" if stored else f"{where} has no tokens")
    return compared, problems


def _drawn(folder: Folder, source: Manifest, count: int, seed: int) -> dict[str, list[tuple[str, str]]]:
    """Draw documents, one a shard while there are shards enough: id and text by split."""
    draw = random.Random(f"{seed} documents")
    shards = [record for record in source.outputs if record.rows]
    chosen: dict[str, set[int]] = {}
    for _ in range(count if shards else 0):
        shard = draw.choice(shards)
        chosen.setdefault(shard.name, set()).add(draw.randrange(shard.rows or 1))
    drawn: dict[str, list[tuple[str, str]]] = {}
    for name, rows in sorted(chosen.items()):
        for row in read_table(folder, name, ["id", "text", "split"]).take(sorted(rows)).to_pylist():
            if row["split"] and row["text"]:  # the others are rejected
                drawn.setdefault(row["split"], []).append((row["id"], row["text"]))
    return drawn


def _tokens(
    folder: Folder, made: Manifest, split: str, documents: set[str], dtype: np.dtype
) -> dict[str, list[np.ndarray]]:
    """Stored tokens of documents by their ids; an id can be that of several documents."""
    found: dict[str, list[np.ndarray]] = {}
    tables = [one.name for one in made.outputs if one.name.startswith(f"{split}/documents")]
    for name in tables:
        rows = read_table(folder, name, filters=[("doc_id", "in", documents)]).to_pylist()
        if not rows:
            continue
        with folder.open(name) as file:
            first = next(pq.ParquetFile(file).iter_batches(1, columns=["start"]))["start"][0].as_py()
        tokens = name.replace("/documents", "/tokens").removesuffix(".parquet") + ".bin"
        with folder.open(tokens) as file:
            for row in rows:
                file.seek((row["start"] - first) * dtype.itemsize)
                data = file.read((row["end"] - row["start"]) * dtype.itemsize)
                whole = len(data) // dtype.itemsize * dtype.itemsize
                found.setdefault(row["doc_id"], []).append(np.frombuffer(data[:whole], dtype=dtype))
    return found


def _difference(stored: np.ndarray, expected: np.ndarray) -> str:
    size = min(len(stored), len(expected))
    differing = np.flatnonzero(stored[:size] != expected[:size])
    if len(differing):
        at = int(differing[0])
        return f"token {at:,} is {stored[at]}, {expected[at]} when tokenised again"
    return f"{len(stored):,} tokens, {len(expected):,} when tokenised again"
