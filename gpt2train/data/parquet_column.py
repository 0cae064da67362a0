"""Texts of a Parquet or Arrow file's column, row by row, in bounded memory also if it repeats large values."""

import contextlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.data.packed_file import compression
from gpt2train.errors import DamagedFileError, UserError, is_io_failure
from gpt2train.store.memory_limit import memory_limit

ROWS = 128  # Parquet rows at a time
ARROW_ROWS = 1024  # rows of a record batch at a time: those that `datasets` writes have 1,000
PARQUET_MB = 512  # additional address space for reading a Parquet file, beside `max_bytes`: whole pages are unpacked
TEXT_TYPES = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_null),
)
ARROW_MAGIC = b"ARROW1"  # a stream has none
BYTES = {"string": pa.binary(), "large_string": pa.large_binary(), "string_view": pa.binary_view()}  # the same bytes
MAX_SHOWN = 12  # columns that an error names


class Cell(NamedTuple):
    """Row of the column; `text` is its bytes, not copied and not checked to be UTF-8, or None for a null."""

    number: int  # row, from 1
    text: pa.Buffer | None
    others: dict[str, Any]  # strings, numbers and maps of the other columns; None for other types and invalid UTF-8
    fault: str = ""  # why this and the following rows of a row group cannot be read; the next one is the next group's
    fits: bool = True  # False if these take too much memory to unpack


def read_cells(
    place: str,
    open_file: Callable[[], AbstractContextManager[IO[bytes]]],
    key: str,
    others: Sequence[str],
    max_bytes: int,
    setting: str = "--json-key",
) -> Iterator[Cell]:
    """Yield the rows of a Parquet file, some at a time; the fault of a row group ends that group alone.

    A row group that takes too much memory is read again with its texts as a dictionary, so that a text that a thousand
    rows repeat is in memory once and is measured before it is copied. Arrow copies the dictionary for each batch, which
    takes three times as long.

    Args:
        place: name of the file, for error messages.
        open_file: function that opens it.
        key: column of the texts, or the path to it through columns of structs (`metadata.text`).
        others: further columns that are read if present, also by paths; of a path into JSON text or a map the column
            with it.
        max_bytes: largest text that is wanted; the memory for reading grows with it.
        setting: setting that names the column, for error messages.

    Raises:
        DamagedFileError: the file is not Parquet, or its only row group is damaged.
        UserError: it has no text column of this name, or cannot be read.
    """
    number = 0
    try:
        with _opened(place, open_file, key, setting, dictionary=False) as file:
            for group in range(file.num_row_groups):
                first, end = number, number + file.metadata.row_group(group).num_rows
                try:
                    for cell in _cells(file, group, first, key, others, max_bytes):
                        number = cell.number
                        yield cell
                except MemoryError:  # also Arrow's own exception
                    with _opened(place, open_file, key, setting, dictionary=True) as other:
                        try:
                            for cell in _cells(other, group, first, key, others, max_bytes):
                                if cell.number > number:
                                    number = cell.number
                                    yield cell
                        except MemoryError:
                            fault = f"the rows from here to {end:,} take more than {PARQUET_MB:,} MB to unpack"
                            yield Cell(number + 1, None, {}, fault, fits=False)
                except (pa.ArrowException, OSError) as error:
                    if file.num_row_groups == 1 or is_io_failure(error):
                        raise
                    yield Cell(
                        number + 1, None, {}, f"the rows from here to {end:,} are damaged ({_first_line(error)})"
                    )
                number = end
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a damaged name of a column
        raise _unreadable(place, open_file, "Parquet", number, error) from error


def read_arrow_cells(
    place: str,
    open_file: Callable[[], AbstractContextManager[IO[bytes]]],
    key: str,
    others: Sequence[str],
    max_bytes: int,
    setting: str = "--json-key",
) -> Iterator[Cell]:
    """Yield the rows of an Arrow file or stream, as `datasets` saves one to the disk; see `read_cells`.

    A record batch may be all of a file. From one that takes too much memory on, a local file is read again as a memory
    map, of which only compressed batches are copied.
    """
    number = 0
    try:
        for mapped in (False, True):
            try:
                with open_file() as raw:
                    source = _map(raw) if mapped else raw
                    check_column(place, arrow_schema(source), key, setting)
                    for cell in _arrow_cells(source, key, others, max_bytes):
                        if cell.number > number:
                            number = cell.number
                            yield cell
                    return
            except MemoryError:
                continue
        yield Cell(number + 1, None, {}, f"the rows from here take more than {PARQUET_MB:,} MB to unpack", fits=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(place, open_file, "Arrow", number, error) from error


def _unreadable(
    place: str, open_file: Callable[[], AbstractContextManager[IO[bytes]]], kind: str, number: int, error: Exception
) -> UserError:
    """Return the error of a file of this kind that cannot be read after a row."""
    if is_io_failure(error):
        return UserError(f"cannot read {place}: {_first_line(error)}; check the path")
    with open_file() as raw:
        packed = compression(raw.read(16))
    fault = f"not a valid {kind} file after row {number:,} ({_first_line(error)})"
    return DamagedFileError(f"{place} is {fault}; {'unpack it' if packed else 'write it again or rename it'}", fault)


def _map(raw: IO[bytes]) -> Any:
    """Map a file into memory; one that is not local stays as it is."""
    with contextlib.suppress(OSError, AttributeError):
        return pa.BufferReader(pa.py_buffer(mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)))
    return raw


def arrow_schema(raw: Any) -> pa.Schema:
    """Read the schema of an Arrow file or stream."""
    return _open_arrow(raw).schema


def arrow_batches(raw: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file or stream, whose offsets are not checked, with some of its columns."""
    fields = sorted({arrow_schema(raw).get_field_index(name) for name in columns} - {-1})
    reader = _open_arrow(raw, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
    if isinstance(reader, pa.RecordBatchFileReader):
        return map(reader.get_batch, range(reader.num_record_batches))
    return iter(reader)


def _open_arrow(raw: Any, **options: Any) -> Any:
    raw.seek(0)
    is_file = raw.read(len(ARROW_MAGIC)) == ARROW_MAGIC
    raw.seek(0)
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(raw, **options)


def _arrow_cells(raw: Any, key: str, others: Sequence[str], max_bytes: int) -> Iterator[Cell]:
    """Yield the rows of an open Arrow file or stream.

    Raises:
        MemoryError: a record batch takes more than `PARQUET_MB`.
    """
    columns = _columns_of(arrow_schema(raw), key, others)
    batches = arrow_batches(raw, [*columns, *(name.partition(".")[0] for name in columns)])
    number = 0
    while True:
        with memory_limit(PARQUET_MB + 4 * max_bytes // 2**20):
            batch = next(batches, None)
        if batch is None:
            return
        batch.validate()
        for first in range(0, batch.num_rows, ARROW_ROWS):
            yield from _batch_cells(batch.slice(first, ARROW_ROWS), number + first, columns, checked=True)
        number += batch.num_rows


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:150]


@contextlib.contextmanager
def _opened(
    place: str, open_file: Callable[[], AbstractContextManager[IO[bytes]]], key: str, setting: str, *, dictionary: bool
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file with a column of texts, read as a dictionary if wanted."""
    with open_file() as raw:
        schema = pq.read_schema(raw)
        raw.seek(0)
        kind = _type_of(schema, key)
        columns = (
            [key] if dictionary and kind is not None and not pa.types.is_dictionary(kind) and is_text(kind) else None
        )
        options = {"buffer_size": 2**20, "pre_buffer": False, "read_dictionary": columns}
        with pq.ParquetFile(raw, page_checksum_verification=True, **options) as file:
            check_column(place, file.schema_arrow, key, setting)
            yield file


def check_column(place: str, schema: pa.Schema, key: str, setting: str) -> None:
    """Raise a `UserError` if a file has no column of texts of this name."""
    kind = _type_of(schema, key)
    if kind is None:
        several = schema.names.count(key) > 1
        found, remedy = ("several columns", "rename them") if several else ("no column", f"name it by {setting}")
        raise UserError(f"{place} has {found} {key!r}; it has {list_names(schema.names)}; {remedy}")
    if not is_text(kind):
        raise UserError(f"column {key!r} of {place} holds {kind}, strings expected; name another by {setting}")


def _columns_of(schema: pa.Schema, key: str, others: Sequence[str]) -> list[str]:
    present = filter(None, (_place_of(schema, name) for name in others))
    return [*dict.fromkeys((key, *present))]


def _cells(
    file: pq.ParquetFile, group: int, number: int, key: str, others: Sequence[str], max_bytes: int
) -> Iterator[Cell]:
    """Yield the rows of a row group; the number is that of the row before it.

    Raises:
        MemoryError: a batch takes more than `PARQUET_MB`.
    """
    columns = _columns_of(file.schema_arrow, key, others)
    # In this thread alone: one of Arrow's that still holds a file of Python's when the interpreter ends aborts it.
    batches = file.iter_batches(ROWS, row_groups=[group], columns=columns, use_threads=False)
    while True:
        with memory_limit(PARQUET_MB + 4 * max_bytes // 2**20):
            batch = next(batches, None)
        if batch is None:
            return
        yield from _batch_cells(batch, number, columns)
        number += batch.num_rows


def _batch_cells(
    batch: pa.RecordBatch, number: int, columns: Sequence[str], *, checked: bool = False
) -> Iterator[Cell]:
    """Yield the rows of a batch; the text is in the first column, the number that of the row before it.

    A batch of Arrow's has to be `checked`, since its offsets can point anywhere.
    """
    found = [_column(batch, name) for name in columns]
    if checked:
        found = [column.view(BYTES[str(column.type)]) if str(column.type) in BYTES else column for column in found]
        for column in found:
            column.validate(full=True)
    key, *further = found
    # As bytes, because Arrow does not check that a string is valid UTF-8.
    for row, text in enumerate(_texts(key)):
        others = {name: _plain(column[row]) for name, column in zip(columns[1:], further, strict=True)}
        yield Cell(number + row + 1, text.as_buffer(), others)


def list_names(names: list[str]) -> str:
    """Format keys or columns for an error message; a character that is no text is replaced."""
    shown = ", ".join(repr(name.encode(errors="replace").decode().replace("\0", "")[:40]) for name in names[:MAX_SHOWN])
    return (shown or "none") + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")


def _type_of(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Type of a column or of a field in a column of structs; None if there is none, or several of the name."""
    if (index := schema.get_field_index(path)) >= 0:
        return schema.field(index).type
    first, *rest = path.split(".")
    kind = schema.field(index).type if rest and (index := schema.get_field_index(first)) >= 0 else None
    for name in rest:
        kind = kind.field(name).type if kind and pa.types.is_struct(kind) and kind.get_field_index(name) >= 0 else None
    return kind


def _place_of(schema: pa.Schema, path: str) -> str | None:
    """Path of the column or field with a value, or column of texts or maps that may hold it; None if there is none."""
    if _type_of(schema, path) is not None:
        return path
    first = path.partition(".")[0]
    kind = _type_of(schema, first)
    return first if kind is not None and (is_text(kind) or _is_map(kind)) else None


def _is_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and is_text(kind.key_type)


def _column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Column of a batch, or a field in a column of structs."""
    if path in batch.schema.names:
        return batch.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(batch.column(first), rest)


def is_text(kind: pa.DataType) -> bool:
    """True for strings (of JSON too), bytes, a dictionary of them, and a column of nulls, which has no other type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else getattr(kind, "storage_type", kind)
    return any(test(kind) for test in TEXT_TYPES)


def _texts(column: pa.Array) -> Iterable[pa.Scalar]:
    """Return the texts of a column as bytes, without copying them."""
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.large_binary())
    values, null = column.dictionary.cast(pa.large_binary()), pa.scalar(None, pa.large_binary())
    return (null if index is None else values[index] for index in column.indices.to_pylist())


def _plain(value: pa.Scalar) -> Any:
    """Convert a cell to a string, number or list, other single values to a string; None for unusable ones."""
    try:
        found = dict(value.as_py() or ()) if _is_map(value.type) else value.as_py()
        found = found.decode() if isinstance(found, bytes) else found
    except (ValueError, OverflowError, KeyError):  # no UTF-8, a date out of range, an unknown time zone
        return None
    return found if isinstance(found, int | float | list | Mapping | None) else str(found)
