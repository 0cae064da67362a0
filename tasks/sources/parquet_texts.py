"""Texts of Parquet files, in bounded memory also for columns that repeat large values."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.core.memory_limit import memory_limit
from tasks.sources.text_item import KEYS, Item, list_names, make_item

ROWS = 128  # Parquet rows at a time
PARQUET_MB = 512  # additional address space for reading a Parquet file, beside `max_bytes`: whole pages are unpacked


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
    with fsspec.open(location, "rb") as raw, contextlib.ExitStack() as stack:
        schema = pq.read_schema(raw)
        raw.seek(0)
        columns = [key] if dictionary and key in schema.names and _is_text(schema.field(key).type) else None
        file = stack.enter_context(pq.ParquetFile(raw, buffer_size=2**20, read_dictionary=columns))
        names = file.schema_arrow.names
        if key not in names:
            raise UserError(f"{location} has no column {key!r}; it has {list_names(names)}; name it with --json-key")
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
