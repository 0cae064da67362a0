"""Look-up of a document in the output folder of the data steps: its row after each step, and the record of its page.

The folder is a local path or any fsspec URL. The steps are found by their manifests, from the tokens backwards, so that
steps of plug-ins are included. What an older or partial output does not have is left out.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from pydantic import ConfigDict

from gpt2train.store.folder import Folder
from gpt2train.store.hub import commits_in
from gpt2train.store.output import FinishedStep, Output
from gpt2train.store.rows import find_rows, matches

PAGES = "pages"
IDENTITY = ("id", "url", "text", "title", "date", "source", "split")  # columns that are no result of a step
USUAL = ("documents", "clean", "decontaminated", "shuffled")
MAX_CUTS = 20  # of a document and step
DESCRIBED = ConfigDict(use_attribute_docstrings=True, extra="forbid")  # of dataclasses that the server's API describes


@dataclass(frozen=True)
class StepRow:
    """Row of a document after one data step."""

    __pydantic_config__ = DESCRIBED
    step: str
    file: str
    row: int
    values: dict[str, Any]
    """Columns by which the step describes the document, such as its language and number of tokens."""
    cuts: list[dict[str, Any]]
    """Parts that the step has cut out of the document, from its audit files."""
    commits: dict[str, str]
    """Commits at which the step read repositories of the hub, by their addresses."""


@dataclass(frozen=True)
class DocumentRecord:
    """Facts about a document in the folders of the data steps that still exist; null where unknown."""

    __pydantic_config__ = DESCRIBED
    title: str | None
    date: str | None
    source: str | None
    """List, archive or file that named it."""
    text: str | None
    """Text after the last step."""
    steps: tuple[StepRow, ...]
    page: str | None
    """Positions of the crawled page in its archive and ledger."""
    complete: bool
    """False if the time was over before all files were searched."""


def document_steps(output: Output) -> list[FinishedStep]:
    """Return the steps with documents that made the tokens, in their order.

    The usual folders are among them if no input leads to them, as after a removal of a manifest between.
    """
    ends = [step for step in output.steps if step.name == "tokens"]
    names = {*USUAL, *(step.name for end in ends for step in output.chain(end))} - {PAGES, "tokens"}
    return [step for step in output.steps if step.name in names and step.outputs]


def look_up(output: Output, doc_id: str, url: str | None, seconds: float = float("inf")) -> DocumentRecord:
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
        stage = step.stage(["id"], doc_id, "", end=end, partial=True)
        if stage.result == "kept" and stage.place and stage.row:
            last = last or stage.row
            values = {key: value for key, value in stage.row.items() if key not in IDENTITY and value is not None}
            place, cuts, read = stage.place, _cuts(step, doc_id, end), commits_in(step.manifest.read)
            steps.insert(0, StepRow(step.name, place.file, place.number, values, cuts, read))
    page = next((place for _, place in find_pages(output, {url}, end)), None) if url else None
    known = {key: last.get(key) for key in ("title", "date", "source", "text")}
    return DocumentRecord(**known, steps=tuple(steps), page=page, complete=time.monotonic() < end)


def find_pages(output: Output, urls: set[str], end: float = float("inf")) -> Iterator[tuple[str, str]]:
    """Yield each URL with the positions of its page: archive, record and byte offset, and row of the ledger."""
    for step in output.steps:
        if step.name == PAGES:
            names = [one.name for one in step.manifest.outputs]
            archives = {f"ledger/{name.removesuffix('.warc.gz')}.parquet": name for name in names}
            for url, place in find_rows(step.folder, list(archives), "url", urls, end=end, partial=True):
                if location := _record(step.folder, archives[place.file], url, end):
                    yield url, f"{PAGES}/{archives[place.file]} {location}; {PAGES}/{place.file} row {place.number}"


def _cuts(step: FinishedStep, doc_id: str, end: float) -> list[dict[str, Any]]:
    """Rows of a document in the audit files of a step that list parts of documents."""
    found: list[dict[str, Any]] = []
    names = step.audit("cuts", "removed")
    for rows in matches(step.folder, names, "id", lambda cells: pc.equal(cells, doc_id), partial=True):
        found += rows
        if len(found) >= MAX_CUTS or time.monotonic() >= end:
            break
    return found[:MAX_CUTS]


def _record(folder: Folder, archive: str, url: str, end: float) -> str | None:
    """Return the position of a page in a WARC file; None if it is not there, or the time is over."""
    from warcio.archiveiterator import ArchiveIterator

    if folder.size(archive) is None:
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
