"""Texts of a Parquet file's column, row by row, in bounded memory also for columns that repeat large values."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from gpt2train.io.memory_limit import memory_limit

ROWS = 128  # Parquet rows at a time
PARQUET_MB = 512  # additional address space for reading a Parquet file, beside `max_bytes`: whole pages are unpacked
MAX_SHOWN = 12  # columns that an error names


class Cell(NamedTuple):
    """Row of the column; `text` is its bytes, not copied and not checked to be UTF-8, or None for a null."""

    number: int
    """Row, from 1."""
    text: pa.Buffer | None
    others: dict[str, Any]
    """Strings and numbers of the other columns; None for other types and invalid UTF-8."""
    fits: bool = True
    """False if this and the following rows take too much memory to unpack; it is the last one."""


def read_cells(
    place: str,
    open_file: Callable[[], AbstractContextManager[IO[bytes]]],
    key: str,
    others: Sequence[str],
    max_bytes: int,
) -> Iterator[Cell]:
    """Yield the rows of a Parquet file, some at a time.

    Args:
        place: name of the file, for error messages.
        open_file: function that opens it.
        key: column of the texts.
        others: further columns that are read if present.
        max_bytes: largest text that is wanted; the memory for reading grows with it.

    Raises:
        UserError: the file is not Parquet or is damaged, or it has no text column of this name.
    """
    number = 0
    try:
        for dictionary in (False, True):
            try:
                with open_file() as raw:
                    for cell in _cells(place, raw, key, others, max_bytes, number, dictionary=dictionary):
                        number += 1
                        yield cell
                return
            except MemoryError:  # also Arrow's own exception
                continue
        yield Cell(number + 1, None, {}, fits=False)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:150]
        raise UserError(
            f"{place} is not a valid Parquet file after row {number:,} ({reason}); write it again or rename it"
        ) from error


def _cells(
    place: str, raw: IO[bytes], key: str, others: Sequence[str], max_bytes: int, done: int, *, dictionary: bool
) -> Iterator[Cell]:
    """Yield the rows of a Parquet file after the first `done` ones.

    With `dictionary`, the texts are read as a dictionary, so that a text that a thousand rows repeat is in memory once
    and is measured before it is copied. Arrow copies the dictionary for each batch, which takes three times as long.

    Raises:
        MemoryError: a batch takes more than `PARQUET_MB`.
    """
    with contextlib.ExitStack() as stack:
        schema = pq.read_schema(raw)
        raw.seek(0)
        columns = [key] if dictionary and key in schema.names and _is_text(schema.field(key).type) else None
        file = stack.enter_context(pq.ParquetFile(raw, buffer_size=2**20, read_dictionary=columns))
        names = file.schema_arrow.names
        if key not in names:
            raise UserError(f"{place} has no column {key!r}; it has {list_names(names)}; name it with --json-key")
        kind = file.schema_arrow.field(key).type
        if not _is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise UserError(f"column {key!r} of {place} holds {kind}, strings expected; name another by --json-key")
        columns = [key, *(name for name in others if name in names and name != key)]
        batches = file.iter_batches(ROWS, columns=columns)
        number = 0
        while True:
            with memory_limit(PARQUET_MB + 4 * max_bytes // 2**20):
                batch = next(batches, None)
            if batch is None:
                return
            further = [(name, batch.column(name)) for name in columns[1:]]
            # As bytes, because Arrow does not check that a string is valid UTF-8.
            for row, text in enumerate(_texts(batch.column(0))):
                number += 1
                if number > done:
                    yield Cell(number, text.as_buffer(), {name: _plain(column[row]) for name, column in further})


def list_names(names: list[str]) -> str:
    """Format keys or columns for an error message; a character that is no text is replaced."""
    shown = ", ".join(repr(name.encode(errors="replace").decode().replace("\0", "")[:40]) for name in names[:MAX_SHOWN])
    return shown + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))


def _texts(column: pa.Array) -> Iterable[pa.Scalar]:
    """Return the texts of a column as bytes, without copying them."""
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.large_binary())
    values, null = column.dictionary.cast(pa.large_binary()), pa.scalar(None, pa.large_binary())
    return (null if index is None else values[index] for index in column.indices.to_pylist())


def _plain(value: pa.Scalar) -> Any:
    """Convert a cell to a string or a number; None for other types and invalid UTF-8."""
    try:
        found = value.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return None
    return str(found) if hasattr(found, "isoformat") else found
