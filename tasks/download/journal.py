"""Write-ahead journal of a shard's fetched pages, from which a killed run resumes after the last complete page.

The journal has two append-only files: the pages, each a complete WARC record, and a line for each URL that is done,
written after its page. A truncated last line or page is dropped and fetched again.
"""

import contextlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gpt2train.store.files import private_folder
from gpt2train.store.folder import Folder, translate_write_errors
from gpt2train.store.manifest import canonical, digest
from tasks.download.ledger import Row

JOURNAL = "_journal"


def journal_folder(folder: Folder) -> Path:
    """Return the folder of a step's journals: beside its files, or for an object store in a private temporary folder.

    Raises:
        UserError: Another user has created that folder.
    """
    if folder.is_local:
        return Path(folder.path(JOURNAL))
    return private_folder() / f"journal-{digest(folder.url)}"


class Journal:
    """The journal of one shard with these URLs, in order; use as a context manager.

    A journal with another `key`, the fingerprint of the step, is discarded.
    """

    def __init__(self, stem: Path, key: str, urls: Sequence[str]) -> None:
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.pages_path, self.rows_path = stem.with_suffix(".pages"), stem.with_suffix(".rows")
        self._head = canonical({"key": key, "urls": digest(list(urls))}) + b"\n"
        self.done: set[int] = set()  # indices of the URLs that are done
        with contextlib.ExitStack() as stack, translate_write_errors(str(stem)):
            valid = self._recover()
            self._rows: IO[bytes] = stack.enter_context(self.rows_path.open("r+b" if valid else "w+b"))
            self._pages: IO[bytes] = stack.enter_context(self.pages_path.open("r+b" if valid else "w+b"))
            if not valid:
                self._rows.write(self._head)
                self._rows.flush()
            else:
                self._rows.truncate(valid)
                self._rows.seek(valid)
                self._pages.seek(0, 2)
            self._files = stack.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc: object) -> None:
        with translate_write_errors(str(self.pages_path)):  # closing flushes what a failed write left in the buffer
            self._files.close()

    def add(self, index: int, row: Row, record: bytes) -> None:
        """Append the ledger row of a URL and its page as a WARC record; empty without a page.

        Raises:
            RunError: The disk is full.
        """
        with translate_write_errors(str(self.pages_path)):
            offset = self._pages.tell()
            if record:
                self._pages.write(record)
                self._pages.flush()  # to the operating system, whose buffers survive a kill of this process
            self._rows.write(canonical([index, offset, len(record), row]) + b"\n")
            self._rows.flush()
        self.done.add(index)

    def rows(self) -> list[tuple[Row, int, int]]:
        """Return (ledger row, offset and length of the page in bytes) of the done URLs, in the order of the list."""
        with self.rows_path.open("rb") as file:
            file.readline()  # the head
            entries = sorted(json.loads(line) for line in file)
        return [(row, offset, length) for _, offset, length, row in entries]

    def page(self, offset: int, length: int) -> bytes:
        """Read one WARC record."""
        with self.pages_path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _recover(self) -> int:
        """Fill `done` from the journal of an earlier run with this key, up to the first incomplete entry.

        Return the bytes of the rows file up to there; 0 if no entry is complete.
        """
        valid = 0
        if not (self.rows_path.exists() and self.pages_path.exists()):
            return valid
        with self.rows_path.open("rb") as rows, self.pages_path.open("rb") as pages:
            if rows.readline() != self._head:
                return valid
            for line in rows:
                try:
                    index, offset, length, _ = json.loads(line)
                except (ValueError, TypeError):
                    break
                pages.seek(offset)
                if not line.endswith(b"\n") or index in self.done or not _whole(pages.read(length), length):
                    break
                self.done.add(index)
                valid = rows.tell()
        return valid


def _whole(record: bytes, length: int) -> bool:
    """Return True if a record is complete; after a power failure it may contain zeros."""
    if len(record) != length:
        return False
    try:
        return not length or bool(zlib.decompress(record, 31))
    except zlib.error:
        return False


def remove_committed_journals(folder: Folder) -> None:
    """Remove the journals of committed shards."""
    for rows in journal_folder(folder).glob("*.rows"):
        if folder.size(f"_batches/{rows.stem}.json") is not None:
            rows.with_suffix(".pages").unlink(missing_ok=True)
            rows.unlink(missing_ok=True)


def clear_journals(folder: Folder, pattern: str = "*") -> None:
    """Remove the journals of a step that is finished or must start again."""
    journals = journal_folder(folder)
    for path in journals.glob(pattern):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # missing or not empty
        journals.rmdir()
