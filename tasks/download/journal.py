"""What is fetched of a shard, on disk at once: a run that is killed goes on with the page after the last one.

Two files that only grow: the pages, each a finished WARC record, and a line for each URL that is done, written after
its page. A last line or page that was cut short is dropped, and asked for again.
"""

import contextlib
import json
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tasks.download.ledger import Row
from tasks.steps import canonical, digest
from tasks.storage import Folder, clear_write_errors

JOURNAL = "_journal"


def journal_folder(folder: Folder) -> Path:
    """Where the journals of a step lie: beside its files; for an object store, in this machine's temporary folder."""
    if folder.is_local:
        return Path(folder.path(JOURNAL))
    return Path(tempfile.gettempdir()) / f"gpt2train-journal-{digest(folder.url)}"


class Journal:
    """The journal of one shard; use as a context manager.

    Args:
        stem: path of its files without their endings.
        key: identity of the work: a journal of other work is thrown away.
        urls: the URLs of the shard, in order.

    Attributes:
        done: indices of the URLs that are done.
    """

    def __init__(self, stem: Path, key: str, urls: Sequence[str]) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.pages_path, self.rows_path = stem.with_suffix(".pages"), stem.with_suffix(".rows")
        self._urls = urls
        self._head = canonical({"key": key, "urls": digest(list(urls))}) + b"\n"
        self.done: set[int] = set()
        with contextlib.ExitStack() as stack, clear_write_errors(str(stem)):
            kept = self._take_up()
            self._rows: IO[bytes] = stack.enter_context(self.rows_path.open("r+b" if kept else "w+b"))
            self._pages: IO[bytes] = stack.enter_context(self.pages_path.open("r+b" if kept else "w+b"))
            if not kept:
                self._rows.write(self._head)
                self._rows.flush()
            else:
                self._rows.truncate(kept)
                self._rows.seek(kept)
                self._pages.seek(0, 2)
            self._files = stack.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with clear_write_errors(str(self.pages_path)):  # what the system did not take is written once more
            self._files.close()

    def add(self, index: int, row: Row, record: bytes) -> None:
        """Set down what became of a URL: its row of the ledger, and its page as a WARC record, or nothing.

        Raises:
            RunError: the disk is full.
        """
        with clear_write_errors(str(self.pages_path)):
            offset = self._pages.tell()
            self._pages.write(record)
            self._pages.flush()  # to the system: what it holds outlives this process
            self._rows.write(canonical([index, offset, len(record), row]) + b"\n")
            self._rows.flush()
        self.done.add(index)

    def rows(self) -> list[tuple[Row, int, int]]:
        """(row of the ledger, offset, length of the page) of each URL that is done, in the order of the list."""
        entries = sorted((index, offset, length, row) for index, offset, length, row, _ in self._entries(check=False))
        return [(row, offset, length) for _, offset, length, row in entries]

    def page(self, offset: int, length: int) -> bytes:
        """One WARC record."""
        with self.pages_path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _take_up(self) -> int:
        """Take what an earlier run left of this work; returns how many bytes of its rows are good."""
        good = 0
        for index, *_, end in self._entries(check=True):
            self.done.add(index)
            good = end
        return good

    def _entries(self, check: bool) -> Iterator[tuple[int, int, int, Row, int]]:
        """(index, offset, length, row, end of its line) up to the first that is not whole."""
        if not (self.rows_path.exists() and self.pages_path.exists()):
            return
        with self.rows_path.open("rb") as rows, self.pages_path.open("rb") as pages:
            if rows.readline() != self._head:
                return
            seen: set[int] = set()
            for line in rows:
                try:
                    index, offset, length, row = json.loads(line)
                except ValueError:
                    return
                if check:
                    pages.seek(offset)
                    if not line.endswith(b"\n") or index in seen or not _whole(pages.read(length), length):
                        return
                    seen.add(index)
                yield index, offset, length, row, rows.tell() if check else 0


def _whole(record: bytes, length: int) -> bool:
    """Whether a record is all there; after a power cut it may hold zeros."""
    if len(record) != length:
        return False
    try:
        return not length or bool(zlib.decompress(record, 31))
    except zlib.error:
        return False


def remove_journal(folder: Path, name: str) -> None:
    """Remove the journal of a shard that is committed."""
    for suffix in (".pages", ".rows"):
        (folder / name).with_suffix(suffix).unlink(missing_ok=True)


def clear_journals(folder: Folder, pattern: str = "*") -> None:
    """Remove the journals of a step: it is finished, or what they hold is not to be built on."""
    journals = journal_folder(folder)
    for path in journals.glob(pattern):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not there, or not empty
        journals.rmdir()
