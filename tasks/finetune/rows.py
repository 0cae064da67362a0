"""Rows of a task's files: tab- or comma-separated, JSON lines or arrays, Parquet or `.arrow`, or one text a file."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.data.documents import ARROW_NAMES, COLUMN_NAMES, JSON_NAMES, read_lines
from gpt2train.data.parquet_column import arrow_batches, arrow_schema
from gpt2train.errors import UserError, not_utf8
from tasks.core.input_files import InputFile, find_inputs, kind_of, open_input, open_raw
from tasks.finetune.settings import TaskSettings

FORMATS = {
    ".tsv": "tsv",
    ".csv": "csv",
    **dict.fromkeys(JSON_NAMES, "json"),
    **dict.fromkeys(COLUMN_NAMES, "parquet"),
    ".txt": "text",
}
MAX_VALUE = 2**24  # bytes of a line, characters of a value; longer ones are rejected
PARQUET_ROWS = 1024  # read at a time


class Row(NamedTuple):
    """One row of a file, or the reason why it cannot be read."""

    number: int
    """Row of the file, from 1, without the line of names."""
    values: dict[str, Any]
    """Value by column; empty for a row that cannot be read."""
    reason: str = ""
    """Reason code of a row that cannot be read."""
    detail: str = ""
    """Found value and expected one."""


def find_files(patterns: Sequence[str], part: str) -> list[InputFile]:
    """Find the files of train, valid or test.

    Raises:
        UserError: one is missing or cannot be read.
    """
    return find_inputs(patterns, f"data.{part}", tuple(FORMATS))


def read_rows(file: InputFile, task: TaskSettings) -> Iterator[Row]:
    """Read the rows of a file in their order.

    Raises:
        UserError: the file is damaged, empty, not of its format, or has no column of a name that the task gives.
    """
    form = format_of(file, task)
    rows = {"tsv": _separated, "csv": _separated, "json": _json, "parquet": _parquet, "text": _text}[form]
    empty = True
    for row in rows(file, task):
        if empty and not row.reason and form != "text":
            check_columns(file, list(row.values), task)
        empty = empty and bool(row.reason)
        yield row
    if empty:
        raise UserError(f"{file.location} has no rows that can be read as {form}; give another file, or data.format")


def format_of(file: InputFile, task: TaskSettings) -> str:
    """Format of a file: as the task says, or by its suffix.

    Raises:
        UserError: the suffix is of no format.
    """
    if task.data.format != "auto":
        return task.data.format
    suffix = kind_of(file.location)
    if suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise UserError(f"{file.location}: no format has the suffix {suffix!r} ({known}); set data.format")
    return "tsv" if suffix == ".txt" and task.kind != "text" else FORMATS[suffix]


def check_columns(file: InputFile, found: Sequence[str], task: TaskSettings) -> None:
    """Check that a file has the columns of a task, each once; that of the label may be missing in test files.

    Raises:
        UserError: one is missing or there several times; the message has those that the file has.
    """
    if several := next((name for name in (*task.columns, task.data.label) if found.count(name) > 1), None):
        raise UserError(f"{file.location} has several columns {several!r}; rename all but one")
    for name in task.text_columns:
        if name not in found:
            shown = ", ".join(map(repr, found[:20]))
            keys = ("prompt", "answer", "messages") if task.kind == "answers" else ("text", "pair")
            setting = next(key for key in keys if getattr(task.data, key) == name)
            raise UserError(f"{file.location} has no column {name!r}; it has {shown}; name it in data.{setting}")


def _separated(file: InputFile, task: TaskSettings) -> Iterator[Row]:
    tabs = format_of(file, task) == "tsv"
    quotes = task.data.quotes if task.data.quotes is not None else not tabs
    with open_input(file.location) as raw:
        if quotes:
            csv.field_size_limit(MAX_VALUE)
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            lines: Iterator[Any] = csv.reader(text, delimiter="\t" if tabs else ",", strict=True)
        else:
            lines = _split_lines(raw, "\t" if tabs else ",")
        names, number = list(task.data.columns), 0
        try:
            for values in lines:
                if isinstance(values, list) and not any(values):  # an empty line
                    continue
                if not names:
                    if not isinstance(values, list):
                        raise UserError(f"{file.location} has no line of column names; give them in data.columns")
                    names = [name.strip() for name in values]
                    check_columns(file, names, task)
                    continue
                number += 1
                if not isinstance(values, list):
                    yield Row(number, {}, *values)
                elif len(values) != len(names):
                    yield Row(number, {}, "wrong_columns", f"{len(values)} values, {len(names)} columns")
                else:
                    yield Row(number, dict(zip(names, values, strict=True)))
        except csv.Error as error:
            place = f"{file.location} after row {number:,}"
            raise UserError(f"{place}: {error}; set data.quotes = false if quotes are text") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{file.location} after row {number:,}: {not_utf8(error)}") from error


def _split_lines(raw: IO[bytes], separator: str) -> Iterator[list[str] | tuple[str, str]]:
    """Values of each line, in which quotes are text; or reason and detail of a line that cannot be read."""
    for number, line in read_lines(raw, MAX_VALUE):
        if line is None:
            yield "too_large", f"a line of more than {MAX_VALUE:,} bytes"
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield "invalid_utf8", not_utf8(error)
            continue
        yield text.removesuffix("\r").split(separator) if text.strip("\r") else []


def _json(file: InputFile, task: TaskSettings) -> Iterator[Row]:
    with open_input(file.location) as raw:
        assert isinstance(raw, io.BufferedReader)
        head = raw.peek(64)[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
        if head.startswith(b"["):
            yield from _json_array(file, raw)
            return
        for number, line in read_lines(raw, MAX_VALUE):
            if line is None:
                yield Row(number, {}, "too_large", f"a line of more than {MAX_VALUE:,} bytes")
            elif line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> Row:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Row(number, {}, "invalid_utf8", not_utf8(error))
    except (ValueError, RecursionError) as error:
        return Row(number, {}, "invalid_json", str(error)[:100])
    if not isinstance(found, dict):
        return Row(number, {}, "invalid_json", "no object")
    return Row(number, found)


def _json_array(file: InputFile, raw: IO[bytes]) -> Iterator[Row]:
    try:
        found = json.loads(raw.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file.location} is not JSON: {error}; give an array or lines of objects") from error
    for number, value in enumerate(found, 1):
        yield Row(number, value) if isinstance(value, dict) else Row(number, {}, "invalid_json", "no object")


def _parquet(file: InputFile, task: TaskSettings) -> Iterator[Row]:
    number, is_arrow = 0, kind_of(file.location) in ARROW_NAMES
    try:
        with open_raw(file.location) as raw, contextlib.ExitStack() as stack:
            table = None if is_arrow else stack.enter_context(pq.ParquetFile(raw))
            names = table.schema_arrow.names if table else arrow_schema(raw).names
            check_columns(file, names, task)
            wanted = [name for name in dict.fromkeys([*task.columns, task.data.label]) if name in names]
            batches = table.iter_batches(PARQUET_ROWS, columns=wanted) if table else arrow_batches(raw, wanted)
            for batch in batches:
                batch.validate(full=is_arrow)  # its offsets can point anywhere
                for values in batch.to_pylist():
                    number += 1
                    yield Row(number, values)
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:  # also of dates and time zones
        reason, form = str(error).partition("\n")[0][:150], "Arrow" if is_arrow else "Parquet"
        raise UserError(f"{file.location} is not a valid {form} file after row {number:,} ({reason})") from error


def _text(file: InputFile, task: TaskSettings) -> Iterator[Row]:
    with open_input(file.location) as raw:
        content = raw.read()
    try:
        yield Row(1, {task.data.text: content.decode("utf-8-sig")})
    except UnicodeDecodeError as error:
        yield Row(1, {}, "invalid_utf8", not_utf8(error))
