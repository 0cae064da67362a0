"""Text records of Parquet files, in bounded memory also for columns that repeat large values."""

from collections.abc import Iterator

import fsspec

from gpt2train.data.parquet_column import PARQUET_MB, Cell, read_cells
from tasks.sources.text_item import PATHS, Item, make_item


def parquet_items(location: str, key: str, max_bytes: int) -> Iterator[Item]:
    """Yield the records of a Parquet file.

    Raises:
        UserError: The file is not Parquet or is damaged, or it has no text column of this name.
    """
    others = [path for paths in PATHS.values() for path in paths]
    for cell in read_cells(location, lambda: fsspec.open(location, "rb"), key, others, max_bytes):
        yield _item(cell, key, max_bytes)


def _item(cell: Cell, key: str, max_bytes: int) -> Item:
    location, data = f"row {cell.number:,}", cell.text
    if not cell.fits:
        detail = f"the rows from here on take more than {PARQUET_MB:,} MB to unpack"
        return Item(location, reason="too_large", detail=detail)
    if data is not None and data.size > max_bytes:
        detail = f"a text of {data.size:,} bytes, at most {max_bytes:,} expected"
        return Item(location, reason="too_large", detail=detail)
    try:
        record = {**cell.others, key: None if data is None else str(data, "utf-8")}
    except UnicodeDecodeError as fault:
        return Item(location, reason="invalid_utf8", detail=f"byte {fault.start:,} of the text is no UTF-8")
    return make_item(location, record, key, max_bytes)
