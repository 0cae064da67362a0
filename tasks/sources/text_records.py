"""Text records of the user's files: JSON lines, Parquet rows, text files, WET records; one in memory at a time.

An unusable record is returned with a reason: `invalid_utf8`, `wrong_type`, `no_text`, `empty`, `nul`, `lone_surrogate`,
`too_large`, `broken_json`, and for WET those of `warc_records`.
A *file* that does not have the format of its suffix is a user error.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

from gpt2train.data.documents import (
    ARROW_NAMES,
    BLANK,
    COLUMN_NAMES,
    END_OF_TEXT,
    JSON_NAMES,
    PYTHON_REMEDY,
    PYTHON_ROW,
    TEXT_NAMES,
    UTF32_REMEDY,
    WIKI_HEAD,
    check_text,
    encoding_of,
    find_value,
    no_mark,
    parse,
    read_lines,
    read_wiki,
    split_objects,
)
from gpt2train.data.parquet_column import Cell, list_names, read_arrow_cells, read_cells
from gpt2train.errors import UTF16, UTF16_REMEDY, DamagedFileError, UserError
from tasks.core.document import strip_unstorable
from tasks.core.input_files import WIKI_KIND, InputFile, kind_of, open_input, open_raw, read_any, unreachable
from tasks.sources.archive_stream import open_archive
from tasks.sources.settings import PATHS, Paths
from tasks.sources.warc_records import BrokenRecord, read_records

WET = (".wet",)
ENDINGS = (*JSON_NAMES, *COLUMN_NAMES, *TEXT_NAMES, *WET, WIKI_KIND)
HEAD = 10  # rows by which the format of a file is checked
SEPARATE = f"it contains {END_OF_TEXT}, at which texts.separator splits a file"
LIMIT = "texts.separator splits a file, texts.max_bytes is the limit"
CONVERT = "convert it: iconv -f LATIN1 -t UTF-8 IN > OUT; or rename the file if it is packed"
MAX_KEYS = 100  # of a row that are kept for an error message; a line of 16 MiB can have a million
MAX_INTEGER = 2**63  # orjson reads a larger one as a float, which many ids have in common
NULL = "{!r} is null"
SURROGATE = re.compile("[\ud800-\udfff]")


class Item(NamedTuple):
    """One text record."""

    location: str  # row (from 1) or byte in the file; empty for a file that is one record
    text: str = ""  # text of a usable record
    fields: Mapping[str, str] = {}  # values of `url`, `id`, `title`, `date`, if present
    reason: str | None = None  # reason code of an unusable record, else None
    detail: str = ""  # found and expected values


def read_items(file: InputFile, key: str, max_bytes: int, separator: str = "", paths: Paths = PATHS) -> Iterator[Item]:
    """Yield every record of a file, in order; the suffix, one of `ENDINGS`, determines the format.

    A JSON line, a text or a text file has at most `max_bytes`; `key` is that of the text in JSON and Parquet,
    `separator` stands between the texts of a text file, and `paths` are further keys.

    Raises:
        DamagedFileError: The file is damaged; all records before that were yielded.
        UserError: The file does not have the format of its suffix, or lacks the key; the message names its keys.
    """
    kind = kind_of(file.location)
    if kind in JSON_NAMES:
        return json_items(file.location, key, max_bytes, paths)
    if kind == WIKI_KIND:
        return wiki_items(file.location, key, max_bytes, paths)
    if kind in COLUMN_NAMES:
        return parquet_items(file.location, key, max_bytes, paths)
    return wet_items(file.location, max_bytes) if kind in WET else text_items(file, max_bytes, separator)


def check_format(file: InputFile, key: str, max_bytes: int) -> None:
    """Read the first record of a file; of a text file its first line, which could be that of JSON lines.

    Raises:
        UserError: As for `read_items`; or a text file has JSON lines.
    """
    if kind_of(file.location) not in TEXT_NAMES:
        next(read_items(file, key, max_bytes), None)
        return
    with open_input(file.location) as stream:
        line = next((line for _, line in read_lines(stream, max_bytes) if line is None or line.strip(BLANK)), None)
    check_text(file.location, line or b"", key)


def json_items(location: str, key: str, max_bytes: int, paths: Paths = PATHS) -> Iterator[Item]:
    """Yield the records of a file of JSON lines; empty lines are skipped.

    Raises:
        UserError: None of the first lines is a JSON object, or none has the key; `DamagedFileError` if there is one.
    """
    head: list[Item] = []
    keys: dict[str, None] = {}
    array = False
    with open_input(location) as stream:
        items = _json_items(stream, key, max_bytes, paths)
        for line, record, item in items:
            head.append(item)
            if isinstance(record, dict):
                keys.update(dict.fromkeys(itertools.islice(record, MAX_KEYS)))
            # An array over several lines, whose last line may be an object, shows in its first line.
            array = len(head) == 1 and item.reason == "broken_json" and (line or b"").lstrip().startswith(b"[")
            if array or item.reason is None or len(head) == HEAD:
                break
        if head:
            _check_head(location, key, head, list(keys), alone=len(head) == 1 and not array)
        yield from head
        for _, _, item in items:
            yield item


def _json_items(stream: IO[bytes], key: str, max_bytes: int, paths: Paths) -> Iterator[tuple[bytes | None, Any, Item]]:
    """Yield the lines, JSON values and records of a stream; a line where files were concatenated has several."""
    for number, line in read_lines(stream, max_bytes):
        parts = [None] if line is None else split_objects(line)
        for place, part in enumerate(parts, 1):
            record, item = json_item(number, part, key, max_bytes, paths)
            yield part, record, item if place == 1 else item._replace(location=f"{item.location}.{place}")


def json_item(number: int, line: bytes | None, key: str, max_bytes: int, paths: Paths = PATHS) -> tuple[Any, Item]:
    """Parse one line; return the JSON value (None if it is invalid) and the record."""
    import orjson

    location = f"row {number:,}"
    if line is None:
        return None, Item(location, reason="too_large", detail=f"a line of more than {max_bytes:,} bytes")
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if line[:4].count(0) == 3 or encoding_of(line).startswith("utf-32"):
            return None, Item(location, reason="invalid_utf8", detail=UTF32_REMEDY)
        if line.startswith(UTF16) or line[:2].count(0) == 1:
            return None, Item(location, reason="invalid_utf8", detail=UTF16_REMEDY)
        # The standard library accepts NaN and lone surrogates, as Python writes them; the latter are rejected below.
        try:
            record = json.loads(line.decode())
        except UnicodeDecodeError as fault:
            detail = f"byte {fault.start:,} of the line is no UTF-8"
            return None, Item(location, reason="invalid_utf8", detail=detail)
        except (ValueError, RecursionError):
            detail = f"{error.msg[:100]}, column {error.colno}"
            if PYTHON_ROW.match(line):
                detail = PYTHON_REMEDY
            return None, Item(location, reason="broken_json", detail=detail)
    if not isinstance(record, dict):
        found = type(record).__name__
        return record, Item(location, reason="wrong_type", detail=f"a JSON {found}, an object expected")
    return record, make_item(location, record, key, max_bytes, paths, line)


def parquet_items(location: str, key: str, max_bytes: int, paths: Paths = PATHS) -> Iterator[Item]:
    """Yield the records of a Parquet or Arrow file.

    Raises:
        UserError: The file is neither, or its only row group is damaged, or it has no text column of this name.
        TransientError: Its store does not answer.
    """
    others = [path for found in paths.values() for path in found]
    read = read_arrow_cells if kind_of(location) in ARROW_NAMES else read_cells
    cells = read(location, lambda: open_raw(location, columns=True), key, others, max_bytes)
    try:
        for cell in cells:
            yield _cell_item(cell, key, max_bytes, paths)
    except Exception as error:
        if away := unreachable(location, error):
            raise away from error
        raise


def _cell_item(cell: Cell, key: str, max_bytes: int, paths: Paths) -> Item:
    location, data = f"row {cell.number:,}", cell.text
    if cell.fault:
        return Item(location, reason="broken_file" if cell.fits else "too_large", detail=cell.fault)
    if data is not None and data.size > max_bytes:
        detail = f"a text of {data.size:,} bytes, at most {max_bytes:,} expected"
        return Item(location, reason="too_large", detail=detail)
    try:
        record = {**cell.others, key: None if data is None else str(data, "utf-8")}
    except UnicodeDecodeError as fault:
        return Item(location, reason="invalid_utf8", detail=f"byte {fault.start:,} of the text is no UTF-8")
    return make_item(location, record, key, max_bytes, paths)


def text_items(file: InputFile, max_bytes: int, separator: str = "") -> Iterator[Item]:
    """Yield the texts of a text file, of UTF-8, or UTF-16 or UTF-32 with a byte order mark.

    It is one text, or those between the separators.
    """
    fields = _meta_fields(file.meta)
    with open_input(file.location) as stream:
        encoding = encoding_of(stream.peek())  # type: ignore[attr-defined]
        if separator:
            for number, data in read_lines(stream, max_bytes, separator.encode(encoding)):
                item = _text_item(f"text {number:,}", data, encoding, fields, max_bytes)
                if item.reason != "empty":
                    yield item._replace(text=item.text.strip("\r\n"))
            return
        data = stream.read(max_bytes + 1)
    item = _text_item("", data if len(data) <= max_bytes else None, encoding, fields, max_bytes)
    if item.reason == "too_large":
        remedy = SEPARATE if END_OF_TEXT.encode(encoding) in data else LIMIT
        item = item._replace(detail=f"{item.detail}; {remedy}")
    yield item


def _text_item(location: str, data: bytes | None, encoding: str, fields: dict[str, str], max_bytes: int) -> Item:
    if data is None:
        return Item(location, "", fields, "too_large", f"more than {max_bytes:,} bytes")
    try:
        item = checked(location, data.decode(encoding).removeprefix("\ufeff"), fields, max_bytes)
        remedy = no_mark(data) if item.reason == "nul" else ""
        return item._replace(detail=f"{item.detail}, {remedy}") if remedy else item
    except UnicodeDecodeError as fault:
        remedy = (f", {found}" if (found := no_mark(data)) else f"; {CONVERT}") if encoding == "utf-8" else ""
        return Item(location, "", fields, "invalid_utf8", f"byte {fault.start:,} is no {encoding}{remedy}")


def _meta_fields(location: str | None) -> dict[str, str]:
    """Return what a crawler's metadata file says of its text; nothing if it is damaged."""
    if location is None:
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        return fields_of(parse(read_any(location)))
    return {}


def wiki_items(location: str, key: str, max_bytes: int, paths: Paths) -> Iterator[Item]:
    """Yield the articles that wikiextractor has written, between lines `<doc …>` and `</doc>` or as JSON lines.

    Raises:
        UserError: The file begins with neither, or its JSON lines lack the key.
    """
    with open_input(location) as stream:
        head = stream.peek().lstrip()  # type: ignore[attr-defined]
        if not head.startswith(WIKI_HEAD):
            if head and not head.startswith(b"{"):
                begin = f"{location} begins with {head[:12]!r}, <doc …> or JSON lines of wikiextractor expected"
                raise UserError(f"{begin}; rename it by its format, as to .txt")
            yield from json_items(location, key, max_bytes, paths)
            return
        for number, values, text in read_wiki(stream, max_bytes):
            fields = {name: strip_unstorable(value.decode(errors="replace")) for name, value in values.items()}
            yield _text_item(f"line {number:,}", text, "utf-8", fields, max_bytes)


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


def make_item(
    location: str, record: Mapping[str, Any], key: str, max_bytes: int, paths: Paths = PATHS, line: bytes = b""
) -> Item:
    """Make a record from parsed fields, and the line they were parsed from."""
    try:
        text = find_value(record, key)
    except KeyError:
        return Item(location, reason="no_text", detail=f"no key {key!r}")
    if text is None:
        return Item(location, reason="no_text", detail=NULL.format(key))
    if not isinstance(text, str):
        return Item(location, reason="wrong_type", detail=f"{key!r} is {type(text).__name__}, a string expected")
    return checked(location, text, fields_of(record, paths, line), max_bytes)


def fields_of(record: Any, paths: Paths = PATHS, line: bytes = b"") -> dict[str, str]:
    """Return the values that a record, or the line with it, has by the keys of `paths`; of a list all, in order."""
    found: dict[str, str] = {}
    for key, places in paths.items():
        for path in places:
            with contextlib.suppress(KeyError):
                value = find_value(record, path)
                if line and isinstance(value, float) and abs(value) >= MAX_INTEGER:
                    return fields_of(json.loads(line), paths)
                if key == "license" and isinstance(value, list):
                    value = ", ".join(sorted({str(one) for one in value})) or None
                if isinstance(value, str | int | float) and value == value:  # pandas writes NaN for none
                    found[key] = strip_unstorable(str(value))
                    break
    return found


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


def _check_head(location: str, key: str, head: list[Item], keys: list[str], *, alone: bool) -> None:
    """Raise a `UserError` if the first records show that a file does not consist of JSON lines with this key.

    A file of a broken line `alone` is a damaged one.
    """
    reasons = {item.reason for item in head}
    first = head[0]
    null = any(item.detail == NULL.format(key) for item in head)  # the key is there
    if keys and reasons in ({"no_text"}, {"wrong_type"}) and not null:
        fault = f"no key {key!r}" if reasons == {"no_text"} else first.detail
        fault = f"{fault}; it has {list_names(keys)}"
        raise UserError(f"{location}, {first.location}: {fault}; name the text by --json-key")
    if reasons <= {"broken_json", "wrong_type", "invalid_utf8"} and not keys:
        remedy = "one JSON object per line expected, as jq -c '.[]' makes of an array, and jq -c . of objects"
        if reasons == {"invalid_utf8"}:
            remedy = CONVERT
        if first.detail in (PYTHON_REMEDY, UTF16_REMEDY, UTF32_REMEDY):
            raise UserError(f"{location}, {first.location}: {first.detail}")
        said = f"{location}, {first.location}: {first.reason} ({first.detail}); {remedy}"
        if reasons == {"broken_json"} and alone:
            raise DamagedFileError(said, f"{first.location}: {first.detail}")
        raise UserError(said)
