"""An index of pages that lie in files of the user: nothing is copied, each row says where a page is found again.

    warcs/part-00003-00001.parquet      pages, in the order of the archive; a batch of the extraction
    warcs/_places/part-00003.json       where the files of `part-00003-*` lie at present: {identity: path or URL}

The index names a file by its identity alone, so that it does not change when the file is moved. The places are written
anew by each run and no manifest names them.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gpt2train.errors import RunError
from tasks.download.body import Refused
from tasks.download.warc import HTML_TYPES, Page
from tasks.inputs import InputFile, open_input
from tasks.runner import Where
from tasks.shards import read_rows
from tasks.sources.payload import page_of
from tasks.sources.records import Record, read_records
from tasks.sources.stream import Place, open_archive
from tasks.steps import canonical
from tasks.storage import Folder

INDEX = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),  # identity of the file that holds the page
        pa.field("offset", pa.int64()),  # where its record begins: unpack from this byte; null: the file is the page
        pa.field("skip", pa.int64()),  # unpacked bytes to pass over from there
        pa.field("length", pa.int64()),  # of the record's block, as it lies in the archive
        pa.field("url", pa.string(), nullable=False),
        pa.field("final_url", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("charset", pa.string()),
        pa.field("fetched_at", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),  # of the page when decoded
        pa.field("sha256", pa.string(), nullable=False),  # of these
    ]
)
PLACES = "_places"
FIELDS = ("url", "final_url", "content_type", "charset", "fetched_at", "source", "sha256")


def index_row(file: InputFile, page: Page, record: Record | None = None) -> dict[str, Any]:
    """The row of a page; no record where the whole file is the page."""
    row: dict[str, Any] = {name: getattr(page, name) for name in FIELDS}
    if record is not None:
        row |= {"offset": record.place.offset, "skip": record.place.skip, "length": len(record.block or b"")}
    return row | {"file": file.identity, "bytes": len(page.body)}


def where_of(root: Folder, files: Sequence[InputFile]) -> Where:
    """Where batches that read these files run: a cluster's workers may not have the disks of this machine."""
    return "process" if root.is_local or all("://" in file.place for file in files) else "thread"


def write_places(folder: Folder, batches: Sequence[Sequence[InputFile]]) -> None:
    """Say where the files of each batch lie at present."""
    places = {
        f"part-{number:05d}.json": canonical({file.identity: file.place for file in files})
        for number, files in enumerate(batches)
    }
    target = folder / PLACES
    target.remove(*(name for name in target.files() if name not in places))
    for name, data in places.items():
        if target.size(name) != len(data) or target.read_bytes(name) != data:
            target.write_bytes(name, data)


def read_indexed(folder: Folder, shard: str) -> Iterator[Page]:
    """The pages that a shard of the index names, in order, one in memory at a time.

    Raises:
        RunError: a file is not where it was, or has changed since it was indexed.
    """
    step, _, name = shard.rpartition("/")
    batch = name.removesuffix(".parquet").rpartition("-")[0]
    places: dict[str, str] = json.loads(folder.read_bytes(f"{step}/{PLACES}/{batch}.json".lstrip("/")))
    for identity, rows in itertools.groupby(read_rows(folder, shard), key=lambda row: row["file"]):
        place, wanted = places[identity], list(rows)
        for row, page in zip(wanted, _pages(place, wanted), strict=True):
            if page is None or page.sha256 != row["sha256"]:
                raise RunError(f"{place} has changed since it was indexed; run the command again")
            yield page


def _pages(place: str, rows: Sequence[dict[str, Any]]) -> Iterator[Page | None]:
    """Pages of one file; None for one that is not there any more."""
    if rows[0]["offset"] is None:
        for row in rows:
            with open_input(place) as stream:
                yield whole_page(row["url"], row["source"], stream.read(row["bytes"] + 1))
        return
    with open_archive(place) as archive:
        for row in rows:
            archive.reach(Place(row["offset"], row["skip"]))
            record = next(read_records(archive, ("response",), row["length"]), None)
            try:
                yield page_of(record, row["source"], row["bytes"], math.inf) if isinstance(record, Record) else None
            except Refused:
                yield None


def whole_page(url: str, source: str, body: bytes) -> Page:
    """A page that a file holds alone. Its encoding is told by the page itself."""
    sha256 = hashlib.sha256(body).hexdigest()
    return Page(url, url, HTML_TYPES[0], None, body, "", sha256, source)
