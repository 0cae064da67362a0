"""Contents of any file of an output as pieces of text, each with the URLs of the page that it belongs to.

Packed files are unpacked, archives read record by record, Parquet row by row, tokens decoded by the tokenizer beside
them; of other files that are no text the bytes are searched for URLs.
"""

import contextlib
import html
import io
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.data.documents import JSON_NAMES
from gpt2train.data.indexed import DTYPES, HEADER, MAGIC
from gpt2train.data.packed_file import FaultLast, compression, unpack
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import MANIFEST
from tasks.core.forgotten import URL_COLUMNS
from tasks.core.shards import read_table
from tasks.outputs.forget.archives import archive_pages
from tasks.outputs.forget.token_text import text_of, tokenizer_beside

BLOCK = 16 * 2**20  # bytes of a file that are searched at a time
OVERLAP = 2**16  # bytes of a block that are searched again with the next one
HEAD = 4096  # bytes of a text without a NUL
ROWS = 1024
TEXT_COLUMNS = ("text", "title")  # of a page; what they mention is its own
LINES = tuple(name for name in JSON_NAMES if name != ".json")  # endings of files of one object per line
TAG = re.compile(r"<[^>]*>")


class Piece(NamedTuple):
    """Text from a file."""

    place: str  # place in the file, for messages
    owners: tuple[str, ...]  # URLs of its page; empty if it belongs to none
    texts: tuple[str, ...]  # text of the page, or of a file without pages
    facts: tuple[str, ...] = ()  # other values, which name no forgotten page


def pieces(root: Folder, name: str) -> Iterator[Piece]:
    """Yield the contents of a file.

    Raises:
        Exception: The file is damaged; any error of its reader.
    """
    with root.open(name) as file:
        head = file.read(io.DEFAULT_BUFFER_SIZE)
    if name.rpartition("/")[2] == MANIFEST:  # its parameters are settings of the user, such as a contact address
        made = json.loads(root.read_bytes(name))
        yield Piece("", (), ("\n".join(_strings({key: value for key, value in made.items() if key != "parameters"})),))
    elif head.startswith(b"PAR1"):
        with root.open(name) as file:
            yield from _rows(pq.ParquetFile(file))
    elif name.endswith(".warc.gz"):
        for urls, text in archive_pages(root, name):
            owners = tuple(url for url in urls if url)
            yield Piece(f"record of {owners[0] if owners else 'no page'}", owners, (TAG.sub(" ", html.unescape(text)),))
    elif name.endswith(".bin") and root.size(f"{name[:-4]}.idx") is not None:
        yield from _documents(root, name[:-4])
    else:
        with root.open(name) as file, unpack(file, compression(head)) as plain:
            yield from _file(io.BufferedReader(FaultLast(plain)), name.removesuffix(".gz").removesuffix(".zst"))


def _rows(file: pq.ParquetFile) -> Iterator[Piece]:
    schema = file.schema_arrow
    names = [field.name for field in schema if _holds_text(field.type)]
    texts = [name for name in names if name in TEXT_COLUMNS]
    owners = [name for name in names if name in URL_COLUMNS]
    number = 0
    for batch in file.iter_batches(ROWS, columns=names) if names else ():
        for row in batch.to_pylist():
            facts = [row[name] for name in names if name not in (*texts, *owners) and _is_fact(name, row[name])]
            yield Piece(
                f"row {number:,}",
                tuple(row[name] for name in owners if row[name]),
                tuple(_strings([row[name] for name in texts])),
                tuple(_strings(facts)),
            )
            number += 1


def _is_fact(name: str, value: Any) -> bool:
    """Return False for the name of a list or file of the user, which may look like a host."""
    return name != "source" or not isinstance(value, str) or "://" in value


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_text(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary,
                                       pa.types.is_large_binary, pa.types.is_string_view))  # fmt: skip


def _strings(value: Any) -> Iterator[str]:
    """Yield every string of a value of JSON or Parquet, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _file(stream: io.BufferedReader, name: str) -> Iterator[Piece]:
    """Yield the lines of JSON, or any other file in overlapping blocks.

    Entities and tags of a text are resolved beside the text as it is.
    """
    is_text = b"\0" not in stream.peek(HEAD)[:HEAD]
    if is_text and name.endswith(LINES):
        for number, line in enumerate(stream):
            yield json_line(line, f"line {number + 1:,}")
        return
    before = b""
    for number, block in enumerate(iter(lambda: stream.read(BLOCK), b"")):
        text = (before + block).decode(errors="replace")
        found = [text if is_text else text.replace("\ufffd", "\0")]  # a NUL ends a URL
        if is_text and name.endswith(".json") and not number and len(block) < BLOCK:
            with contextlib.suppress(ValueError, RecursionError):
                found.append("\n".join(_strings(json.loads(text))))
        elif is_text and ("<" in text or "&" in text):
            found.append(TAG.sub(" ", html.unescape(text)))
        yield Piece(f"byte {number * BLOCK:,}", (), tuple(found))
        before = block[-OVERLAP:]


def json_line(line: bytes, place: str) -> Piece:
    """Return a line of JSON as a piece; its key `url` names the page."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Piece(place, (), (line.decode(errors="replace"),))
    owners = value.get("url") if isinstance(value, dict) else None
    return Piece(place, (owners,) if isinstance(owners, str) else (), ("\n".join(_strings(value)),))


def _documents(root: Folder, prefix: str) -> Iterator[Piece]:
    """Yield the documents of a pair of token files, with their pages from the table beside them."""
    tokenizer = tokenizer_beside(root, prefix)
    if tokenizer is None:
        raise ValueError("there is no tokenizer beside these tokens, so that they cannot be read")
    folder, _, stem = prefix.rpartition("/")
    table, urls = f"{folder}/{stem.replace('tokens', 'documents', 1)}.parquet", []
    if root.size(table) is not None:
        urls = read_table(root, table, ["url"])["url"].to_pylist()
    dtype, ends = _index(root.read_bytes(f"{prefix}.idx"))
    known = len(urls) == len(ends)
    with root.open(f"{prefix}.bin") as file:
        for number, size in enumerate(np.diff(ends, prepend=0).tolist()):
            ids = np.frombuffer(file.read(size * dtype.itemsize), dtype)
            if len(ids) != size:
                raise ValueError("truncated")
            owners = (urls[number],) if known and urls[number] else ()
            yield Piece(f"document {number:,}", owners, (text_of(tokenizer, ids.tolist()),))


def _index(data: bytes) -> tuple[np.dtype[Any], np.ndarray]:
    """Return the dtype of the tokens and the end of each document in tokens, of an index in Megatron's format."""
    magic, _, code, sequences, marks = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("the index of these tokens has another format")
    lengths = np.frombuffer(data, "<i4", sequences, HEADER.size)
    documents = np.frombuffer(data, "<i8", marks, HEADER.size + 12 * sequences)
    return DTYPES[code], np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[documents[1:]]
