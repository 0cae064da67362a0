"""Records of loose files: a JSON line, a Parquet row, a text file, an extracted text (WET); one in memory at a time.

A record that cannot be used is given back with its place and a reason: `broken_json`, `invalid_utf8`, `wrong_type`,
`no_text`, `empty`, `nul`, `lone_surrogate`, `too_large`; of WET also those of `records`. A *file* that is not what its
name says is a mistake of the user.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.html.decode import storable
from tasks.inputs import InputFile, kind_of, open_input, read_lines
from tasks.sources.records import Broken, read_records
from tasks.sources.stream import open_archive

JSON = (".jsonl", ".json", ".ndjson")
PARQUET = (".parquet",)
TEXT = (".txt", ".md", ".text")
WET = (".wet",)
ENDINGS = (*JSON, *PARQUET, *TEXT, *WET)
KEYS = ("url", "id", "title", "date")  # taken along where they are there
HEAD = 10  # rows that tell whether a file is what its name says
ROWS = 64  # Parquet rows at a time
SHOWN = 12  # keys that an error names
SURROGATE = re.compile("[\ud800-\udfff]")


class Item(NamedTuple):
    """One record of a loose file.

    Attributes:
        place: row (from 1), or byte, in the file; empty for a file that is one record.
        text: what it holds, where it can be used.
        fields: `url`, `id`, `title`, `date`, as far as they are there.
        reason: a code, where it cannot be used.
        detail: what was found and what was expected.
    """

    place: str
    text: str = ""
    fields: Mapping[str, str] = {}
    reason: str | None = None
    detail: str = ""


def read_items(file: InputFile, key: str, max_bytes: int) -> Iterator[Item]:
    """Every record of a file, in order; its ending tells the kind.

    Args:
        file: ends in one of `ENDINGS`, packed or not (Parquet: not).
        key: name of the text in JSON and Parquet records.
        max_bytes: of a JSON line, a text, a text file.

    Raises:
        UserError: it is not what its name says, or has no such key; the message names what it has.
    """
    kind = kind_of(file.place)
    if kind in JSON:
        return json_items(file.place, key, max_bytes)
    if kind in PARQUET:
        return parquet_items(file.place, key, max_bytes)
    return wet_items(file.place, max_bytes) if kind in WET else text_items(file.place, max_bytes)


def json_items(place: str, key: str, max_bytes: int) -> Iterator[Item]:
    """Records of a file of JSON lines; empty lines are passed over.

    Raises:
        UserError: none of the first lines is a JSON object, or none has the key.
    """
    head: list[Item] | None = []
    keys: dict[str, None] = {}
    with open_input(place) as stream:
        for number, line in read_lines(stream, max_bytes):
            if line is not None and not line.strip():
                continue
            record, item = json_item(number, line, key, max_bytes)
            if head is None:
                yield item
                continue
            if not head and item.reason == "broken_json" and line is not None and line.lstrip().startswith(b"["):
                _check_head(place, key, [item], [])  # an array over many lines, of which the last may be an object
            head.append(item)
            keys.update(dict.fromkeys(record if isinstance(record, dict) else ()))
            if item.reason is None or len(head) == HEAD:
                _check_head(place, key, head, list(keys))
                yield from head
                head = None
    if head:
        _check_head(place, key, head, list(keys))
        yield from head


def json_item(number: int, line: bytes | None, key: str, max_bytes: int) -> tuple[Any, Item]:
    """One line: what it says in JSON (None where it is none), and its record."""
    import orjson

    place = f"row {number:,}"
    if line is None:
        return None, Item(place, reason="too_large", detail=f"a line of more than {max_bytes:,} bytes")
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        # The standard library takes NaN and lone surrogates, as Python writes them; the latter are refused below.
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as fault:
            return None, Item(place, reason="invalid_utf8", detail=f"byte {fault.start:,} of the line is no UTF-8")
        except (ValueError, RecursionError):
            return None, Item(place, reason="broken_json", detail=f"{error.msg[:100]}, column {error.colno}")
    if not isinstance(record, dict):
        found = type(record).__name__
        return record, Item(place, reason="wrong_type", detail=f"a JSON {found}, an object expected")
    return record, make_item(place, record, key, max_bytes)


def make_item(place: str, record: Mapping[str, Any], key: str, max_bytes: int) -> Item:
    """The record of parsed fields."""
    text = record.get(key)
    if text is None:
        return Item(place, reason="no_text", detail=f"no key {key!r}" if key not in record else f"{key!r} is null")
    if not isinstance(text, str):
        return Item(place, reason="wrong_type", detail=f"{key!r} is {type(text).__name__}, a string expected")
    fields = {name: storable(str(record[name])) for name in KEYS if isinstance(record.get(name), str | int | float)}
    return checked(place, text, fields, max_bytes)


def checked(place: str, text: str, fields: Mapping[str, str], max_bytes: int) -> Item:
    """A record, refused where its text is none."""
    reason, detail = None, ""
    if "\0" in text:
        reason, detail = "nul", f"a NUL at character {text.index(chr(0)):,} of the text"
    elif found := SURROGATE.search(text):
        reason, detail = "lone_surrogate", f"half of a surrogate pair at character {found.start():,} of the text"
    elif not text.strip():
        reason, detail = "empty", "a text of nothing but spaces" if text else "a text of no characters"
    elif len(text) > max_bytes:
        reason, detail = "too_large", f"a text of {len(text):,} characters, at most {max_bytes:,} bytes expected"
    return Item(place, "" if reason else text, fields, reason, detail)


def parquet_items(place: str, key: str, max_bytes: int) -> Iterator[Item]:
    """Records of a Parquet file.

    Raises:
        UserError: it is no Parquet file, it is damaged, or it has no column of texts of this name.
    """
    import fsspec

    number = 0
    try:
        with fsspec.open(place, "rb") as raw, pq.ParquetFile(raw, buffer_size=2**20) as file:
            names = file.schema_arrow.names
            if key not in names:
                raise UserError(f"{place} has no column {key!r}; it has {_listed(names)}; name it with --json-key")
            kind = file.schema_arrow.field(key).type
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_binary(plain)):
                raise UserError(f"column {key!r} of {place} holds {kind}, strings expected; name another by --json-key")
            columns = [key, *(name for name in KEYS if name in names and name != key)]
            for batch in file.iter_batches(ROWS, columns=columns):
                texts = batch.column(0)
                if pa.types.is_dictionary(kind):
                    texts = texts.dictionary_decode()
                others = [(name, batch.column(name)) for name in columns[1:]]
                # As bytes: Arrow does not look whether a string is UTF-8.
                for row, text in enumerate(texts.cast(pa.large_binary())):
                    number += 1
                    record = {name: _plain(column[row]) for name, column in others}
                    yield _parquet_item(f"row {number:,}", text.as_py(), record, key, max_bytes)
    except (pa.ArrowException, OSError) as error:
        said = str(error).partition("\n")[0][:150]
        raise UserError(
            f"{place} is no whole Parquet file after row {number:,} ({said}); write it again or rename it"
        ) from error


def _parquet_item(place: str, text: bytes | None, record: dict[str, Any], key: str, max_bytes: int) -> Item:
    if text is not None and len(text) > max_bytes:
        return Item(place, reason="too_large", detail=f"a text of {len(text):,} bytes, at most {max_bytes:,} expected")
    try:
        return make_item(place, {**record, key: None if text is None else text.decode()}, key, max_bytes)
    except UnicodeDecodeError as fault:
        return Item(place, reason="invalid_utf8", detail=f"byte {fault.start:,} of the text is no UTF-8")


def _plain(value: pa.Scalar) -> Any:
    """A cell as a string or a number; None for what is neither, or is no UTF-8."""
    try:
        found = value.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return None
    return str(found) if hasattr(found, "isoformat") else found


def text_items(place: str, max_bytes: int) -> Iterator[Item]:
    """The one record of a text file: UTF-8, or UTF-16 with its byte order mark."""
    with open_input(place) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        yield Item("", reason="too_large", detail=f"more than {max_bytes:,} bytes")
        return
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        yield checked("", data.decode(encoding), {}, max_bytes)
    except UnicodeDecodeError as fault:
        yield Item("", reason="invalid_utf8", detail=f"byte {fault.start:,} is no {encoding.removesuffix('-sig')}")


def wet_items(place: str, max_bytes: int) -> Iterator[Item]:
    """The extracted texts of a WET archive (records of kind `conversion`)."""
    with open_archive(place) as stream:
        for record in read_records(stream, ("conversion",), max_bytes):
            where = f"byte {record.place.offset:,}"
            if isinstance(record, Broken):
                yield Item(where, "", {"url": storable(record.url)}, record.reason, record.detail)
                continue
            fields = {"url": storable(record.url), "date": record.date}
            if record.block is None:
                yield Item(where, "", fields, "too_large", f"a text of more than {max_bytes:,} bytes")
                continue
            try:
                yield checked(where, record.block.decode(), fields, max_bytes)
            except UnicodeDecodeError as fault:
                yield Item(where, "", fields, "invalid_utf8", f"byte {fault.start:,} of the text is no UTF-8")


def _check_head(place: str, key: str, head: list[Item], keys: list[str]) -> None:
    """Whether the first records say that the file is none of JSON lines with this key.

    Raises:
        UserError: they do.
    """
    reasons = {item.reason for item in head}
    first = head[0]
    if reasons <= {"no_text"} and keys:
        raise UserError(f"{place}, {first.place}: no key {key!r}; it has {_listed(keys)}; name the text by --json-key")
    if reasons == {"wrong_type"} and keys:
        raise UserError(f"{place}, {first.place}: {first.detail}; it has {_listed(keys)}; name the text by --json-key")
    if reasons <= {"broken_json", "wrong_type", "invalid_utf8"} and not keys:
        remedy = "one JSON object a line expected, as jq -c '.[]' makes of an array; or rename the file"
        raise UserError(f"{place}, {first.place}: {first.reason} ({first.detail}); {remedy}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(storable(name)[:40]) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
