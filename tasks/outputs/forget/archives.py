"""Records of a web archive of gzip members, one per record: their URLs, and copies without some of them."""

import zlib
from collections.abc import Iterator
from typing import IO

from warcio.archiveiterator import ArchiveIterator

from gpt2train.errors import RunError
from gpt2train.store.folder import FileRecord, Folder
from tasks.core.forgotten import Forgotten
from tasks.download.warc import EMPTY, Span, is_response, record_spans, urls_of

CHUNK = 2**20


def archive_urls(folder: Folder, name: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of each page of an archive, and the one in the list (or the same)."""
    try:
        with folder.open(name) as file:
            for span in _spans(file, f"{folder.url}/{name}"):
                url, listed, _ = urls_of(span.head)
                if url:
                    yield url, listed or url
    except FileNotFoundError:
        return  # removed by a removal that was killed


def copy_without(folder: Folder, name: str, forgotten: Forgotten) -> FileRecord:
    """Replace an archive by one without the records of forgotten pages; the other bytes stay as they are."""
    with folder.open(name) as file:
        spans = list(_spans(file, f"{folder.url}/{name}"))
        dropped = [span for span in spans if forgotten.matches(*urls_of(span.head))]
        pages = sum(map(is_response, spans)) - sum(map(is_response, dropped))
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
        yield from record_spans(file)
    except (ValueError, EOFError, zlib.error) as error:
        raise RunError(f"{place} is damaged ({error}); remove it and run the flow before pages are removed") from error


def _copy(source: IO[bytes], target: IO[bytes], start: int, end: int) -> None:
    source.seek(start)
    while start < end and (data := source.read(min(CHUNK, end - start))):
        target.write(data)
        start += len(data)


def archive_pages(folder: Folder, name: str) -> Iterator[tuple[tuple[str | None, ...], str]]:
    """Yield the URLs and the content of each record of an archive, decoded as UTF-8."""
    with folder.open(name) as file:
        for record in ArchiveIterator(file):
            yield urls_of(record.rec_headers), record.content_stream().read().decode(errors="replace")
