"""Index of pages in the user's files: nothing is copied, each row has the position of a page.

    warcs/part-00003-00001.parquet      pages, in the order of the archive; a batch of the extraction
    warcs/_places/part-00003.json       current locations of the files of `part-00003-*`: {identity: path or URL}

The index names a file only by its identity, so that it does not change when the file is moved. The locations are
rewritten by each run, and no manifest names them.
"""

import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, canonical
from tasks.core.input_files import InputFile, open_input
from tasks.core.row_reuse import bytes_key
from tasks.core.shards import read_rows
from tasks.download.mime import HTML_TYPES
from tasks.download.response_body import FetchRejectedError
from tasks.download.warc import Page, members
from tasks.sources.archive_stream import ArchiveStream, StreamPosition, open_archive
from tasks.sources.http_payload import page_of
from tasks.sources.warc_records import MAX_HEAD, BrokenRecord, Record, read_records

INDEX = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),  # identity of the file that holds the page
        pa.field("offset", pa.int64()),  # `StreamPosition.offset` of its record; null if the file is the page
        pa.field("skip", pa.int64()),  # `StreamPosition.skip` of its record
        pa.field("length", pa.int64()),  # bytes of the record's block in the archive
        pa.field("url", pa.string(), nullable=False),
        pa.field("final_url", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("charset", pa.string()),
        pa.field("fetched_at", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),  # of the decoded page
        pa.field("sha256", pa.string(), nullable=False),  # of the decoded page
    ]
)
PAGE_KINDS = ("response", "resource")  # of records with pages; a resource has no HTTP header
PLACES = "_places"
MAX_BYTES = 64 * 2**20  # of a page of the download, which has a limit of its own, or of one between two codings
NO_PAGE = ("http_status", "content_type")  # reasons of records that hold no HTML page
FIELDS = ("url", "final_url", "content_type", "charset", "fetched_at", "source", "sha256")

T = TypeVar("T")


def index_row(file: InputFile, page: Page, record: Record | None = None) -> dict[str, Any]:
    """Return the index row of a page; without a record if the whole file is the page."""
    row: dict[str, Any] = {name: getattr(page, name) for name in FIELDS}
    if record is not None:
        row |= {"offset": record.position.offset, "skip": record.position.skip, "length": len(record.block or b"")}
    return row | {"file": file.identity, "bytes": len(page.body)}


def write_locations(folder: Folder, batches: Sequence[Sequence[InputFile]]) -> None:
    """Write the current locations of the files of each batch."""
    locations = {
        f"part-{number:05d}.json": canonical({file.identity: file.location for file in files})
        for number, files in enumerate(batches)
    }
    target = folder / PLACES
    target.remove(*(name for name in target.files() if name not in locations))
    for name, data in locations.items():
        if target.size(name) != len(data) or target.read_bytes(name) != data:
            target.write_bytes(name, data)


def read_pages(folder: Folder, shard: str) -> Iterator[Page]:
    """Yield the HTML pages of a WARC file of the download, or of an index of the user's files, in order.

    One page is in memory at a time. The name of a shard begins with its step if the folder is the output.

    A broken record of the download, or one whose page does not have its digest, gives a page with a `fault`, and
    reading continues at the next record.

    Raises:
        RunError: A user's file is missing or has changed; the message names it.
    """
    if shard.endswith(".parquet"):
        yield from _read_indexed(folder, shard)
        return
    with folder.open(shard) as file:
        yield from _pages_of(ArchiveStream(file, gzipped=True), shard)


def pages_behind(root: Folder, pages: Manifest, documents: str) -> Iterator[Page]:
    """Yield the pages from which the extraction made a file of documents; see `shard_behind`.

    Raises:
        RunError: as `read_pages`.
        FileNotFoundError: the shard of the download is gone.
        IndexError: the download has no such shard.
    """
    return read_pages(root / pages.folder, shard_behind(pages, documents))


def shard_behind(pages: Manifest, documents: str) -> str:
    """Name of the shard of pages behind a file of documents, of the fourth behind `part-00003.parquet`."""
    return pages.outputs[int(documents.removesuffix(".parquet").rpartition("-")[2])].name


def read_members(
    folder: Folder, shard: str, known: Callable[[bytes], T | None]
) -> Iterator[tuple[bytes | None, Page | T]]:
    """Yield the pages of `read_pages`, each with the hash of its gzip member; `known` replaces pages by that hash.

    Pages that are replaced are not decompressed. The hash is None where a page is not a member of its own, and from
    the first page with a fault on.
    """
    if shard.endswith(".parquet"):
        yield from ((None, page) for page in read_pages(folder, shard))
        return
    done = 0
    with folder.open(shard) as file:
        for member in members(file, MAX_BYTES + MAX_HEAD):
            stored = bytes_key(member)
            if (found := known(stored)) is not None:
                done += 1
                yield stored, found
                continue
            pages = list(_pages_of(ArchiveStream(io.BytesIO(member), gzipped=True), shard))
            if any(page.fault for page in pages):
                break  # its detail names the place in the archive; or it is a piece of a member
            done += len(pages)
            yield from ((stored if len(pages) == 1 else None, page) for page in pages)
        else:
            return
    yield from ((None, page) for page in itertools.islice(read_pages(folder, shard), done, None))


def _pages_of(stream: ArchiveStream, name: str) -> Iterator[Page]:
    for record in read_records(stream, ("response",), MAX_BYTES + MAX_HEAD):
        fault = "the page does not have the digest it was written with"
        try:
            if isinstance(record, BrokenRecord):
                raise FetchRejectedError(record.reason, record.detail)
            page = page_of(record, name, MAX_BYTES, math.inf, own=True)
            declared = record.head.get_header("WARC-Payload-Digest") or ""
            if declared == f"sha256:{page.sha256}" or not declared.startswith("sha256:"):  # not of the download
                yield page
                continue
        except FetchRejectedError as error:
            if error.reason in NO_PAGE:
                continue
            fault = error.detail
        at = f"{name}, byte {record.position.offset:,}"  # without the folder: it is written into an output
        yield replace(whole_page(record.url, name, b""), fault=f"{at}: {fault}")


def _read_indexed(folder: Folder, shard: str) -> Iterator[Page]:
    step, _, name = shard.rpartition("/")
    batch = name.removesuffix(".parquet").rpartition("-")[0]
    locations: dict[str, str] = json.loads(folder.read_bytes(f"{step}/{PLACES}/{batch}.json".lstrip("/")))
    for identity, group in itertools.groupby(read_rows(folder, shard), key=lambda row: row["file"]):
        location, rows = locations[identity], list(group)
        for row, page in zip(rows, _pages(location, rows), strict=True):
            if page is None or page.sha256 != row["sha256"]:
                raise RunError(f"{location} has changed since it was indexed; run the command again")
            yield page


def _pages(location: str, rows: Sequence[dict[str, Any]]) -> Iterator[Page | None]:
    """Yield the pages of one file; None for a page that is no longer there."""
    if rows[0]["offset"] is None:
        for row in rows:
            with open_input(location) as stream:
                yield whole_page(row["url"], row["source"], stream.read(row["bytes"] + 1))
        return
    with open_archive(location) as archive:
        for row in rows:
            archive.seek(StreamPosition(row["offset"], row["skip"]))
            record = next(read_records(archive, PAGE_KINDS, row["length"]), None)
            try:
                limit = max(row["bytes"], MAX_BYTES)
                yield page_of(record, row["source"], limit, math.inf) if isinstance(record, Record) else None
            except FetchRejectedError:
                yield None


def whole_page(url: str, source: str, body: bytes) -> Page:
    """Return the page of a file that holds one page; its encoding comes from the page itself."""
    sha256 = hashlib.sha256(body).hexdigest()
    return Page(url, url, HTML_TYPES[0], None, body, "", sha256, source)
