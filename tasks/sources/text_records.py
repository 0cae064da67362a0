"""Text records of the user's files: JSON lines, Parquet rows, text files, WET records; one in memory at a time.

An unusable record is returned with its location and a reason: `broken_json`, `invalid_utf8`, `wrong_type`, `no_text`,
`empty`, `nul`, `lone_surrogate`, `too_large`; for WET also those of `warc_records`. A *file* that does not have the
format of its suffix is a user error.
"""

import codecs
import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.core.document import strip_unstorable
from tasks.core.input_files import InputFile, kind_of, open_input, read_lines
from tasks.core.memory_limit import memory_limit
from tasks.sources.archive_stream import open_archive
from tasks.sources.warc_records import BrokenRecord, read_records

JSON = (".jsonl", ".json", ".ndjson")
PARQUET = (".parquet",)
TEXT = (".txt", ".md", ".text")
WET = (".wet",)
ENDINGS = (*JSON, *PARQUET, *TEXT, *WET)
KEYS = ("url", "id", "title", "date")  # further keys that are read if present
HEAD = 10  # rows by which the format of a file is checked
ROWS = 128  # Parquet rows at a time
PARQUET_MB = 512  # additional address space for reading a Parquet file, beside `max_bytes`: whole pages are unpacked
MAX_KEYS = 100  # of a row that are kept for an error message; a line of 16 MiB can have a million
MAX_SHOWN = 12  # keys that an error names
SURROGATE = re.compile("[\ud800-\udfff]")


class Item(NamedTuple):
    """One text record."""

    location: str  # row (from 1) or byte in the file; empty for a file that is one record
    text: str = ""  # text of a usable record
    fields: Mapping[str, str] = {}  # values of `url`, `id`, `title`, `date`, if present
    reason: str | None = None  # reason code of an unusable record, else None
    detail: str = ""  # found and expected values


def read_items(file: InputFile, key: str, max_bytes: int) -> Iterator[Item]:
    """Yield every record of a file, in order; the suffix, one of `ENDINGS`, determines the format.

    A JSON line, a text or a text file has at most `max_bytes`; `key` is that of the text in JSON and Parquet.

    Raises:
        UserError: The file does not have the format of its suffix, or lacks the key; the message names its keys.
    """
    kind = kind_of(file.location)
    if kind in JSON:
        return json_items(file.location, key, max_bytes)
    if kind in PARQUET:
        return parquet_items(file.location, key, max_bytes)
    return wet_items(file.location, max_bytes) if kind in WET else text_items(file.location, max_bytes)


def json_items(location: str, key: str, max_bytes: int) -> Iterator[Item]:
    """Yield the records of a file of JSON lines; empty lines are skipped.

    Raises:
        UserError: None of the first lines is a JSON object, or none has the key.
    """
    head: list[Item] = []
    keys: dict[str, None] = {}
    with open_input(location) as stream:
        lines = ((number, line) for number, line in read_lines(stream, max_bytes) if line is None or line.strip())
        for number, line in lines:
            record, item = json_item(number, line, key, max_bytes)
            head.append(item)
            if isinstance(record, dict):
                keys.update(dict.fromkeys(itertools.islice(record, MAX_KEYS)))
            # An array over several lines, whose last line may be an object, shows in its first line.
            array = len(head) == 1 and item.reason == "broken_json" and (line or b"").lstrip().startswith(b"[")
            if array or item.reason is None or len(head) == HEAD:
                break
        if head:
            _check_head(location, key, head, list(keys))
        yield from head
        for number, line in lines:
            yield json_item(number, line, key, max_bytes)[1]


def json_item(number: int, line: bytes | None, key: str, max_bytes: int) -> tuple[Any, Item]:
    """Parse one line; return the JSON value (None if it is invalid) and the record."""
    import orjson

    location = f"row {number:,}"
    if line is None:
        return None, Item(location, reason="too_large", detail=f"a line of more than {max_bytes:,} bytes")
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        # The standard library accepts NaN and lone surrogates, as Python writes them; the latter are rejected below.
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as fault:
            return None, Item(location, reason="invalid_utf8", detail=f"byte {fault.start:,} of the line is no UTF-8")
        except (ValueError, RecursionError):
            return None, Item(location, reason="broken_json", detail=f"{error.msg[:100]}, column {error.colno}")
    if not isinstance(record, dict):
        found = type(record).__name__
        return record, Item(location, reason="wrong_type", detail=f"a JSON {found}, an object expected")
    return record, make_item(location, record, key, max_bytes)


def make_item(location: str, record: Mapping[str, Any], key: str, max_bytes: int) -> Item:
    """Make a record from parsed fields."""
    text = record.get(key)
    if text is None:
        return Item(location, reason="no_text", detail=f"no key {key!r}" if key not in record else f"{key!r} is null")
    if not isinstance(text, str):
        return Item(location, reason="wrong_type", detail=f"{key!r} is {type(text).__name__}, a string expected")
    fields = {
        name: strip_unstorable(str(record[name])) for name in KEYS if isinstance(record.get(name), str | int | float)
    }
    return checked(location, text, fields, max_bytes)


def checked(location: str, text: str, fields: Mapping[str, str], max_bytes: int) -> Item:
    """Make a record, with a reason if its text is unusable."""
    reason, detail = None, ""
    if "\0" in text:
        reason, detail = "nul", f"a NUL at character {text.index(chr(0)):,} of the text"
    elif found := SURROGATE.search(text):
        reason, detail = "lone_surrogate", f"half of a surrogate pair at character {found.start():,} of the text"
    elif not text.strip():
        reason, detail = "empty", "a text of nothing but spaces" if text else "a text of no characters"
    elif len(text) > max_bytes:
        reason, detail = "too_large", f"a text of {len(text):,} characters, at most {max_bytes:,} bytes expected"
    return Item(location, "" if reason else text, fields, reason, detail)


def parquet_items(location: str, key: str, max_bytes: int) -> Iterator[Item]:
    """Yield the records of a Parquet file.

    Raises:
        UserError: The file is not Parquet or is damaged, or it has no text column of this name.
    """
    number = 0
    try:
        for dictionary in (False, True):
            try:
                for item in _parquet_rows(location, key, max_bytes, number, dictionary=dictionary):
                    number += 1
                    yield item
                return
            except MemoryError:  # also Arrow's own exception
                continue
        detail = f"the rows from here on take more than {PARQUET_MB:,} MB to unpack"
        yield Item(f"row {number + 1:,}", reason="too_large", detail=detail)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:150]
        raise UserError(
            f"{location} is not a valid Parquet file after row {number:,} ({reason}); write it again or rename it"
        ) from error


def _parquet_rows(location: str, key: str, max_bytes: int, done: int, *, dictionary: bool) -> Iterator[Item]:
    """Yield the records of a Parquet file after the first `done` ones.

    With `dictionary`, the texts are read as a dictionary, so that a text that a thousand rows repeat is in memory once
    and is measured before it is copied. Arrow copies the dictionary for each batch, which takes three times as long.

    Raises:
        MemoryError: A batch takes more than `PARQUET_MB`.
    """
    import fsspec

    with fsspec.open(location, "rb") as raw, contextlib.ExitStack() as stack:
        schema = pq.read_schema(raw)
        raw.seek(0)
        columns = [key] if dictionary and key in schema.names and _is_text(schema.field(key).type) else None
        file = stack.enter_context(pq.ParquetFile(raw, buffer_size=2**20, read_dictionary=columns))
        names = file.schema_arrow.names
        if key not in names:
            raise UserError(f"{location} has no column {key!r}; it has {_listed(names)}; name it with --json-key")
        kind = file.schema_arrow.field(key).type
        if not _is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise UserError(f"column {key!r} of {location} holds {kind}, strings expected; name another by --json-key")
        columns = [key, *(name for name in KEYS if name in names and name != key)]
        batches = file.iter_batches(ROWS, columns=columns)
        number = 0
        while True:
            with memory_limit(PARQUET_MB + 4 * max_bytes // 2**20):
                batch = next(batches, None)
            if batch is None:
                return
            others = [(name, batch.column(name)) for name in columns[1:]]
            # As bytes, because Arrow does not check that a string is valid UTF-8.
            for row, text in enumerate(_texts(batch.column(0))):
                number += 1
                if number > done:
                    record = {name: _plain(column[row]) for name, column in others}
                    yield _parquet_item(f"row {number:,}", text, record, key, max_bytes)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))


def _texts(column: pa.Array) -> Iterable[pa.Scalar]:
    """Return the texts of a column as bytes, without copying them."""
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.large_binary())
    values, null = column.dictionary.cast(pa.large_binary()), pa.scalar(None, pa.large_binary())
    return (null if index is None else values[index] for index in column.indices.to_pylist())


def _parquet_item(location: str, found: pa.Scalar, record: dict[str, Any], key: str, max_bytes: int) -> Item:
    data = found.as_buffer()  # without a copy; None for a null
    if data is not None and data.size > max_bytes:
        detail = f"a text of {data.size:,} bytes, at most {max_bytes:,} expected"
        return Item(location, reason="too_large", detail=detail)
    try:
        record[key] = None if data is None else str(data, "utf-8")
    except UnicodeDecodeError as fault:
        return Item(location, reason="invalid_utf8", detail=f"byte {fault.start:,} of the text is no UTF-8")
    return make_item(location, record, key, max_bytes)


def _plain(value: pa.Scalar) -> Any:
    """Convert a cell to a string or a number; None for other types and invalid UTF-8."""
    try:
        found = value.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return None
    return str(found) if hasattr(found, "isoformat") else found


def text_items(location: str, max_bytes: int) -> Iterator[Item]:
    """Yield the single record of a text file: UTF-8, or UTF-16 with a byte order mark."""
    with open_input(location) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        yield Item("", reason="too_large", detail=f"more than {max_bytes:,} bytes")
        return
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        yield checked("", data.decode(encoding), {}, max_bytes)
    except UnicodeDecodeError as fault:
        yield Item("", reason="invalid_utf8", detail=f"byte {fault.start:,} is no {encoding.removesuffix('-sig')}")


def wet_items(location: str, max_bytes: int) -> Iterator[Item]:
    """Yield the extracted texts of a WET archive (records of kind `conversion`)."""
    with open_archive(location) as stream:
        for record in read_records(stream, ("conversion",), max_bytes):
            where = f"byte {record.position.offset:,}"
            if isinstance(record, BrokenRecord):
                yield Item(where, "", {"url": strip_unstorable(record.url)}, record.reason, record.detail)
                continue
            fields = {"url": strip_unstorable(record.url), "date": record.date}
            if record.block is None:
                yield Item(where, "", fields, "too_large", f"a text of more than {max_bytes:,} bytes")
                continue
            try:
                yield checked(where, record.block.decode(), fields, max_bytes)
            except UnicodeDecodeError as fault:
                yield Item(where, "", fields, "invalid_utf8", f"byte {fault.start:,} of the text is no UTF-8")


def _check_head(location: str, key: str, head: list[Item], keys: list[str]) -> None:
    """Check by the first records that a file consists of JSON lines with this key.

    Raises:
        UserError: It does not.
    """
    reasons = {item.reason for item in head}
    first = head[0]
    if keys and reasons in ({"no_text"}, {"wrong_type"}):
        fault = f"no key {key!r}" if reasons == {"no_text"} else first.detail
        raise UserError(f"{location}, {first.location}: {fault}; it has {_listed(keys)}; name the text by --json-key")
    if reasons <= {"broken_json", "wrong_type", "invalid_utf8"} and not keys:
        remedy = "one JSON object per line expected, as jq -c '.[]' makes of an array; or rename the file"
        raise UserError(f"{location}, {first.location}: {first.reason} ({first.detail}); {remedy}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(strip_unstorable(name)[:40]) for name in names[:MAX_SHOWN])
    return shown + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
