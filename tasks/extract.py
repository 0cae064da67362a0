"""Pages -> documents: the main text of each page, by trafilatura in a worker that can be killed.

`documents/part-00000.parquet`, schema `shards.DOCUMENT`, one part a WARC shard, in the order of the pages. A poison
page costs itself and nothing else: it is `extract_timeout` or `extract_crashed` in the rejected twin.
"""

import concurrent.futures
import functools
import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import pebble
from pydantic import Field

from gpt2train.errors import RunError
from gpt2train.settings import Settings
from tasks.download.warc import Page, read_pages
from tasks.html import Extracted, extract_text
from tasks.pool import WorkerPool, local_pool
from tasks.runner import Runner
from tasks.shards import DOCUMENT, commit_rows, rejected_row
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

WINDOW = 4  # pages in flight per worker and batch: keeps the workers fed, bounds the memory
MIN_CRASHES = 20  # fewer crashes than this never stop the step
LOST = ("extract_timeout", "extract_crashed")

Answer = concurrent.futures.Future[Extracted]


class ExtractSettings(Settings):
    """How the main text is taken out of a page."""

    fast: bool = False
    """Skip trafilatura's comparison with readability and justext: 1.6x the pages a second, other text on some."""
    tables: bool = True
    """Keep the text of tables."""
    dates: bool = False
    """Search the publication date of each page; slow."""
    deadline: float = Field(30.0, gt=0, le=3600)
    """Seconds that one page may take in a worker before the worker is killed; average pages take 0.05."""
    memory_mb: int | None = Field(2048, ge=256)
    """Megabytes of address space that one page may take on top of the idle worker; none lifts the limit."""
    max_crashed: float = Field(0.5, gt=0, le=1)
    """Share of crashed pages in a shard above which the step stops: then the machine is at fault, not the pages."""


def extract(root: Folder, pages: Manifest, settings: ExtractSettings, runner: Runner) -> Manifest:
    """Extract the main text of every page into `documents/`; one batch a WARC shard."""
    step = Step(
        root,
        "extract",
        version=1,
        parameters=settings.model_dump(mode="json", exclude={"max_crashed"}),
        inputs={"download": pages},
        folder="documents",
        packages=("trafilatura", "justext", "lxml", "htmldate", "charset-normalizer"),
    )
    if done := runner.finished(step):
        return done
    work = functools.partial(extract_part, root / pages.folder, settings)
    outcomes = runner.batches(step, "part", [record.name for record in pages.outputs], work, where="node")
    return step.commit(Outcome.total(outcomes))


def extract_part(source: Folder, settings: ExtractSettings, folder: Folder, name: str, shard: str) -> Outcome:
    """Extract one WARC shard; waits while the pool of this process works.

    Raises:
        RunError: more than `max_crashed` of the pages crashed.
    """
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    crashes: Counter[str] = Counter()
    for row, found in extracted(local_pool(), read_pages(source, shard), settings):
        if found.reason is None:
            identity = document_id(row["url"], found.text)
            kept.append({**row, "id": identity, "text": found.text, "title": found.title, "date": found.date})
        else:
            rejected.append(rejected_row(row, found.reason, found.detail))
            crashes.update([found.detail.partition(" on ")[0]] if found.reason == "extract_crashed" else [])
    pages = len(kept) + len(rejected)
    if crashes.total() >= MIN_CRASHES and crashes.total() > settings.max_crashed * pages:
        raise RunError(
            f"{source.url}/{shard}: the extraction failed on {crashes.total()} of {pages} pages, most often: "
            f"{crashes.most_common(1)[0][0]}; check the installation of trafilatura, or raise extract.max_crashed"
        )
    return commit_rows(
        folder, f"{name}.parquet", kept, rejected, DOCUMENT, {"characters": sum(len(row["text"]) for row in kept)}
    )


def extracted(
    pool: WorkerPool, pages: Iterable[Page], settings: ExtractSettings
) -> Iterator[tuple[dict[str, Any], Extracted]]:
    """Send pages to the pool, a few ahead; give back (url and source, what was found) in the pages' order."""
    waiting: deque[tuple[Page, Answer]] = deque()
    for page in pages:
        waiting.append((page, _submit(pool, page, settings)))
        if len(waiting) >= WINDOW * pool.workers:
            yield _collect(pool, *waiting.popleft(), settings)
    while waiting:
        yield _collect(pool, *waiting.popleft(), settings)


def document_id(url: str, text: str) -> str:
    """Identity of a document: BLAKE2b-128 of `url`, a line feed and the text as extracted, hex."""
    return hashlib.blake2b(f"{url}\n{text}".encode(), digest_size=16).hexdigest()


def _submit(pool: WorkerPool, page: Page, settings: ExtractSettings) -> Answer:
    return pool.submit(
        extract_text,
        page.body,
        page.charset,
        page.final_url,
        settings.fast,
        settings.tables,
        page.fetched_at if settings.dates else None,
        settings.memory_mb,
        timeout=settings.deadline,
    )


def _collect(
    pool: WorkerPool, page: Page, answer: Answer, settings: ExtractSettings
) -> tuple[dict[str, Any], Extracted]:
    found = _await(answer, page, settings)
    if found.reason in LOST:  # once more: the machine (a busy disk, the memory of others) may have been at fault
        found = _await(_submit(pool, page, settings), page, settings)
    return {"url": page.url, "source": page.source}, found


def _await(answer: Answer, page: Page, settings: ExtractSettings) -> Extracted:
    """Wait for one page; whatever it did to its worker becomes a reason."""
    error = answer.exception()  # not `except Exception`: any error of a hostile page is an answer, none is hidden
    if error is None:
        return answer.result()
    if isinstance(error, ImportError | concurrent.futures.BrokenExecutor):
        raise error  # the installation or the pool is broken, not the page
    size = f"{len(page.body):,} bytes"
    if isinstance(error, TimeoutError):
        return Extracted(reason="extract_timeout", detail=f"no text from {size} after {settings.deadline:g} s")
    if isinstance(error, pebble.ProcessExpired):
        return Extracted(reason="extract_crashed", detail=f"the worker died (exit code {error.exitcode}) on {size}")
    return Extracted(reason="extract_crashed", detail=f"{type(error).__name__} on {size}: {str(error)[:100]}")
