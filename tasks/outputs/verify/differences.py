"""First difference of two files: row and column of Parquet, byte of any other file."""

import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder

BLOCK = 1 << 20
SHOWN = 40  # characters of a value


def first_difference(kept: Folder, redone: Folder, name: str) -> str | None:
    """Describe the first difference of a file in the output from the one that was done again; None for equal content.

    Two Parquet files of other bytes have equal content if their rows are equal: their footers name the release of
    pyarrow that wrote them.
    """
    sizes = kept.size(name), redone.size(name)
    if sizes[0] is None or sizes[1] is None:
        return "missing in the output" if sizes[0] is None else "not made again"
    if name.endswith(".parquet"):
        return _first_row(kept, redone, name)
    return _first_byte(kept, redone, name)


def _first_row(kept: Folder, redone: Folder, name: str) -> str | None:
    with redone.open(name) as file:
        new = pq.read_table(file)
    try:
        with kept.open(name) as file:
            old = pq.read_table(file)
        old.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        return f"no readable Parquet file ({str(error).splitlines()[0][:80]})"
    if old.schema.remove_metadata() != new.schema.remove_metadata():
        return f"columns {old.schema.names} in the output, {new.schema.names} when done again"
    found: tuple[int, str, str] | None = None
    for column in new.column_names:
        pairs = zip(old[column].to_pylist(), new[column].to_pylist(), strict=False)
        row = next((row for row, (one, other) in enumerate(pairs) if one != other and repr(one) != repr(other)), None)
        if row is not None and (found is None or row < found[0]):
            values = f"{_short(old[column][row])} in the output, {_short(new[column][row])} when done again"
            found = row, column, values
    if found:
        return f"row {found[0]}, column {found[1]}: {found[2]}"
    if old.num_rows != new.num_rows:
        return f"{count_of(old.num_rows, 'row')} in the output, {new.num_rows:,} when done again"
    return None


def _short(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _first_byte(kept: Folder, redone: Folder, name: str) -> str | None:
    position = 0
    with kept.open(name) as old, redone.open(name) as new:
        while True:
            one, other = old.read(BLOCK), new.read(BLOCK)
            if one != other:
                pairs = enumerate(zip(one, other, strict=False))
                first = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
                return f"byte {position + first:,}"
            if not one:
                return None
            position += len(one)
