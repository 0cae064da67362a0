"""Records of a web archive of gzip members, one per record: their URLs, and copies without some of them."""

from collections.abc import Iterator
from typing import IO, NamedTuple

from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError
from tasks.core.forgotten import Forgotten
from tasks.core.storage import FileRecord, Folder
from tasks.download.forgotten_pages import WARC_URLS
from tasks.download.warc import EMPTY

CHUNK = 2**20


class Span(NamedTuple):
    """Bytes of one record, compressed."""

    kind: str
    urls: tuple[str | None, ...]  # by the header fields `WARC_URLS`
    offset: int
    length: int


def archive_urls(folder: Folder, name: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of each page of an archive, and the one in the list (or the same)."""
    try:
        with folder.open(name) as file:
            for span in _spans(file, f"{folder.url}/{name}"):
                if span.urls[0]:
                    yield span.urls[0], span.urls[1] or span.urls[0]
    except FileNotFoundError:
        return  # removed by a removal that was killed


def copy_without(folder: Folder, name: str, forgotten: Forgotten) -> FileRecord:
    """Replace an archive by one without the records of forgotten pages; the other bytes stay as they are."""
    with folder.open(name) as file:
        spans = list(_spans(file, f"{folder.url}/{name}"))
        dropped = [span for span in spans if forgotten.matches(*span.urls)]
        pages = sum(span.kind == "response" for span in spans) - sum(span.kind == "response" for span in dropped)
        if dropped:
            with folder.writing(name) as draft, draft.open("wb") as copy:
                at = 0
                for span in dropped:
                    _copy(file, copy, at, span.offset)
                    at = span.offset + span.length
                _copy(file, copy, at, folder.size(name) or 0)
                if not copy.tell():
                    copy.write(EMPTY)
    return folder.record(name, rows=pages)


def _spans(file: IO[bytes], place: str) -> Iterator[Span]:
    """Yield the records of an archive in order.

    Raises:
        RunError: The archive is damaged, so that a record may be hidden in it.
    """
    try:
        records = ArchiveIterator(file)
        for record in records:
            kind, urls = record.rec_type, tuple(record.rec_headers.get_header(field) for field in WARC_URLS)
            records.read_to_end(record)
            yield Span(kind, urls, records.get_record_offset(), records.get_record_length())
    except Exception as error:  # warcio raises whatever a damaged header leads to
        raise RunError(
            f"{place} is damaged ({error}); remove it and run the flow again before pages are removed"
        ) from error


def _copy(source: IO[bytes], target: IO[bytes], start: int, end: int) -> None:
    source.seek(start)
    while start < end and (data := source.read(min(CHUNK, end - start))):
        target.write(data)
        start += len(data)


def archive_pages(folder: Folder, name: str) -> Iterator[tuple[tuple[str | None, ...], str]]:
    """Yield the URLs and the content of each record of an archive, decoded as UTF-8."""
    with folder.open(name) as file:
        for record in ArchiveIterator(file):
            urls = tuple(record.rec_headers.get_header(field) for field in WARC_URLS)
            yield urls, record.content_stream().read().decode(errors="replace")
