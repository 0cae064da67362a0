"""Look-up of a document in the output folder of the data steps: its row after each step, and the record of its page.

The folder is a local path or any fsspec URL. The steps are found by their manifests, from the tokens backwards, so that
steps of plug-ins are included. What an older or partial output does not have is left out.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpt2train.io.inner_path import STEP_MANIFEST, file_names

PAGES = "pages"
IDENTITY = ("id", "url", "text", "title", "date", "source", "split")  # columns that are no result of a step
USUAL = ("documents", "clean", "decontaminated", "shuffled")
MAX_CUTS = 20  # of a document and step


@dataclass(frozen=True)
class StepRow:
    """Row of a document after one step.

    Attributes:
        step: folder of the step.
        file: file in that folder.
        row: number of the row, from 0.
        values: columns by which the step describes the document, such as its language and number of tokens.
        cuts: rows about this document in the step's audit files, such as the parts that were cut out.
    """

    step: str
    file: str
    row: int
    values: dict[str, Any]
    cuts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class DocumentRecord:
    """Facts about a document in the folders that still exist; None where they are unknown.

    Attributes:
        title: title of the page.
        date: date of the page.
        source: list, archive or file that named it.
        text: text after the last step.
        steps: rows in the order of the steps.
        page: positions of the crawled page in its archive and ledger.
        complete: False if the time was over before all files were searched.
    """

    title: str | None = None
    date: str | None = None
    source: str | None = None
    text: str | None = None
    steps: tuple[StepRow, ...] = ()
    page: str | None = None
    complete: bool = True


class OutputFolder:
    """Output folder of the data steps, local or on an object store, read only."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url).rstrip("/")
        self._fs, self._root = fsspec.core.url_to_fs(self.url)

    def __truediv__(self, name: str) -> "OutputFolder":
        return OutputFolder(f"{self.url}/{name}")

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        return self._fs.open(f"{self._root}/{name}", "rb")

    def exists(self, name: str) -> bool:
        """Return True if there is such a file."""
        return bool(self._fs.isfile(f"{self._root}/{name}"))

    def manifest(self) -> dict[str, Any]:
        """Read the manifest of the step in this folder; empty if there is none."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._fs.cat_file(f"{self._root}/{STEP_MANIFEST}"))
            return found if isinstance(found, dict) else {}
        return {}

    def names(self, kind: str = "outputs") -> list[str]:
        """Names of a finished step's files of one kind; empty without a manifest.

        Raises:
            UserError: one could lead out of the folder.
        """
        try:
            return file_names(self.manifest(), kind, f"{self.url}/{STEP_MANIFEST}")
        except ValueError:
            return []

    def step_folders(self) -> list[str]:
        """Folders of the finished steps below this one, sorted."""
        patterns = [f"{self._root}/*/{STEP_MANIFEST}", f"{self._root}/data_steps/*/{STEP_MANIFEST}"]
        with contextlib.suppress(OSError):
            found = [path for pattern in patterns for path in self._fs.glob(pattern)]
            # The paths of a store begin without the protocol, those of the local disk may be absolute.
            start = found[0].index(self._root.lstrip("/")) + len(self._root.lstrip("/")) + 1 if found else 0
            return sorted(path[start : -len(STEP_MANIFEST) - 1] for path in found)
        return []


def document_steps(output: OutputFolder, last: str = "tokens") -> list[str]:
    """Folders of the steps before the step in the folder `last`, in the order of the flow, by their manifests' inputs.

    The usual folders come first if no input leads to them, as after a removal of a manifest between.
    """
    manifests = {name: (output / name).manifest() for name in output.step_folders()}
    by_identity = {f"{one.get('fingerprint')}:{one.get('content')}": name for name, one in manifests.items()}
    found, pending = list[str](), [last]
    while pending:
        inputs = manifests.get(pending.pop(0), {}).get("inputs", {})
        known = [by_identity[one] for _, one in sorted(inputs.items()) if one in by_identity]
        new = [name for name in known if name not in found]
        found, pending = [*new, *found], pending + new
    names = [*(name for name in USUAL if name in manifests and name not in found), *found]
    return [name for name in names if name != PAGES and any(x.endswith(".parquet") for x in (output / name).names())]


def look_up(output: OutputFolder, doc_id: str, url: str | None, seconds: float = float("inf")) -> DocumentRecord:
    """Collect what is known about a document, for at most some seconds.

    Args:
        output: output folder of the data steps.
        doc_id: id of the document.
        url: URL of its page, by which the record in the archive is found.
        seconds: time after which no further file is searched.
    """
    end = time.monotonic() + seconds
    steps, last = list[StepRow](), dict[str, Any]()
    for step in reversed(document_steps(output)):
        folder = output / step
        for name, number, _ in find_rows(folder, folder.names(), "id", {doc_id}, end):
            row = _read_row(folder, name, number)
            last = last or row
            values = {key: value for key, value in row.items() if key not in IDENTITY and value is not None}
            steps.insert(0, StepRow(step, name, number, values, _cuts(folder, doc_id, end)))
    page = next((place for _, place in find_pages(output, {url}, end)), None) if url else None
    known = {key: last.get(key) for key in ("title", "date", "source", "text")}
    return DocumentRecord(**known, steps=tuple(steps), page=page, complete=time.monotonic() < end)


def find_rows(
    folder: OutputFolder, names: Sequence[str], column: str, wanted: set[str], end: float = float("inf")
) -> Iterator[tuple[str, int, str]]:
    """Yield file, row and value of the first occurrence of each wanted value in a column, until a monotonic time."""
    remaining = set(wanted)
    for name in names:
        if not remaining or time.monotonic() >= end:
            return
        if not name.endswith(".parquet") or not folder.exists(name):
            continue
        with folder.open(name) as opened:
            file = pq.ParquetFile(opened)
            if column not in file.schema_arrow.names:
                continue
            values = file.read(columns=[column])[column]
        for row in np.flatnonzero(pc.is_in(values, pa.array(sorted(remaining), values.type)).to_numpy()).tolist():
            value = values[row].as_py()
            if value in remaining:
                remaining.discard(value)
                yield name, row, value


def find_pages(output: OutputFolder, urls: set[str], end: float = float("inf")) -> Iterator[tuple[str, str]]:
    """Yield each URL with the positions of its page: archive, record and byte offset, and row of the ledger."""
    folder = output / PAGES
    ledgers = {f"ledger/{name.removesuffix('.warc.gz')}.parquet": name for name in folder.names()}
    for ledger, row, url in find_rows(folder, list(ledgers), "url", urls, end):
        if location := _record(folder, ledgers[ledger], url, end):
            yield url, f"{PAGES}/{ledgers[ledger]} {location}; {PAGES}/{ledger} row {row}"


def _read_row(folder: OutputFolder, name: str, number: int) -> dict[str, Any]:
    """Read one row of a file, and only its row group."""
    with folder.open(name) as opened:
        file = pq.ParquetFile(opened)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if number < rows:
                found: dict[str, Any] = file.read_row_group(group).slice(number, 1).to_pylist()[0]
                return found
            number -= rows
    return {}


def _cuts(folder: OutputFolder, doc_id: str, end: float) -> list[dict[str, Any]]:
    """Rows of a document in the audit files of a step that list parts of documents."""
    found: list[dict[str, Any]] = []
    for name in folder.names("audit"):
        if len(found) >= MAX_CUTS or time.monotonic() >= end:
            break
        if not name.startswith(("cuts/", "removed/")) or not folder.exists(name):
            continue
        with folder.open(name) as opened:
            file = pq.ParquetFile(opened)
            if "id" in file.schema_arrow.names:
                rows = file.read()
                found += rows.filter(pc.equal(rows["id"], doc_id)).to_pylist()
    return found[:MAX_CUTS]


def _record(folder: OutputFolder, archive: str, url: str, end: float) -> str | None:
    """Return the position of a page in a WARC file; None if it is not there, or the time is over."""
    from warcio.archiveiterator import ArchiveIterator

    if not folder.exists(archive):
        return None
    with folder.open(archive) as file:
        records = ArchiveIterator(file)
        for number, record in enumerate(records, 1):
            if time.monotonic() >= end:
                return None
            names = [record.rec_headers.get_header(name) for name in ("X-List-URL", "WARC-Target-URI")]
            if record.rec_type == "response" and url in names:
                fetched = record.rec_headers.get_header("WARC-Date")
                return f"record {number}, byte {records.get_record_offset():,}, fetched {fetched}"
    return None
