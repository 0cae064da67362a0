"""Extraction of pages: bytes to main text by the chosen engine, in a worker process that may be killed."""

import functools
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

from lxml.html import HtmlElement

from gpt2train.store.memory_limit import STATM, bytes_of, memory_limit
from tasks.core.document import strip_unstorable
from tasks.download.mime import HTML_TYPES, type_of
from tasks.download.warc import Page
from tasks.extract import main_content
from tasks.extract.complexity import MAX_ELEMENTS, cut_attributes
from tasks.extract.decode import MAX_NOISE, count_undecodable, decode
from tasks.extract.metadata import language_hint, page_title, publication_day, stated_days
from tasks.extract.prefilter import prefilter_reason
from tasks.extract.settings import WORKER_OUTGROWN, Engine, ExtractOptions, ExtractResult
from tasks.extract.soft_404 import detect_soft_404, page_marks

RESET_PAGES = 1000  # after which the caches of an engine are emptied; those of trafilatura fill within some thousand
NO_LATEST = "9999-12-31"  # of a page without a day of its fetch; htmldate would take the clock's
_page_numbers = itertools.count(1)

logging.getLogger("htmldate").setLevel(logging.CRITICAL)  # it warns about each page without a date


class TextEngine(NamedTuple):
    """Program that finds the main text of a page."""

    parse: Callable[[str, bytes | None], HtmlElement | None]
    """Parse a page, given as a string and, if it is UTF-8, as bytes; None if there is nothing in it."""
    text: Callable[[HtmlElement, ExtractOptions], str | None]  # main text of a parsed page, which may be changed
    empty_caches: Callable[[], None]


def extract_pages(pages: Sequence[Page], options: ExtractOptions) -> list[ExtractResult]:
    """Extract main text and metadata of a group of pages.

    Returns:
        One result per page. Reasons: `undecodable`, `no_text`, `too_many_elements`, those of `prefilter` and those of
        `soft_404`.

    Raises:
        MemoryError: a page exceeds `options.memory_mb`.
        Exception: any error that lxml or trafilatura raises for a hostile page.
    """
    _recycle_worker(options.worker_recycle_mb)
    with memory_limit(options.memory_mb):
        return [extract_page(page, options) for page in pages]


def extract_page(page: Page, options: ExtractOptions) -> ExtractResult:
    """Extract main text and metadata of one page."""
    engine = text_engine(options.engine)
    if next(_page_numbers) % RESET_PAGES == 0:
        engine.empty_caches()
    if (kind := type_of(HTML_TYPES[0], page.body)) not in HTML_TYPES:  # archives of earlier releases hold such files
        return _rejected("undecodable", f"the bytes are those of {kind}")
    html, encoding = decode(page.body, page.charset)
    # Bytes that are no UTF-8 are replaced by Python, not by the parser, whose rule is another one.
    utf_8 = page.body if encoding == "utf-8" and "\ufffd" not in html else None
    undecodable = count_undecodable(html, utf_8)
    if undecodable > MAX_NOISE * len(html):
        share = undecodable / len(html)
        return _rejected("undecodable", f"{share:.0%} of the characters are noise when read as {encoding}")
    if options.wanted and (found := prefilter_reason(html, options.wanted)):
        return _rejected(*found)
    cut = cut_attributes(html)
    tree = engine.parse(cut, utf_8 if cut is html else None)
    if tree is None:
        return _rejected("no_text", f"no HTML tree in {len(page.body):,} bytes")
    # The parser adds at most one element a tag (the `p` of a text after it); few pages have so many tags.
    if 2 * html.count("<") + 4 > MAX_ELEMENTS and (elements := int(tree.xpath("count(//*)"))) > MAX_ELEMENTS:
        return _rejected("too_many_elements", f"found {elements:,}, at most {MAX_ELEMENTS:,} expected")
    title, language = page_title(tree), language_hint(tree, page.content_language)
    days = stated_days(tree)
    date = publication_day(days, page.fetched_at[:10])
    by_fetch_day = bool(days and days[0] != date) or (not page.fetched_at and len(set(days)) > 1)
    marks = page_marks(tree, title) if options.detect_soft_404 else None
    if date is None and options.dates:
        date, by_fetch_day = _search_date(tree, page), True
    text = strip_unstorable(engine.text(tree, options) or "").strip()
    if marks and (found := detect_soft_404(marks, text)):
        return _rejected(*found)
    if not text:
        return _rejected("no_text", f"no main text in {len(page.body):,} bytes")
    return ExtractResult(text=text, title=title, date=date, language=language, by_fetch_day=by_fetch_day)


@functools.cache
def text_engine(name: Engine) -> TextEngine:
    """Return an engine by its name."""
    if name == "structure":
        return TextEngine(
            parse=lambda html, utf_8: main_content.parse(html if utf_8 is None else utf_8),
            text=lambda tree, options: main_content.structured_text(tree, options.tables),
            empty_caches=lambda: None,
        )
    import trafilatura  # 0.3 s, which the other engine does not need
    from trafilatura.meta import reset_caches
    from trafilatura.utils import load_html

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it warns about each page without a text
    return TextEngine(
        parse=lambda html, _utf_8: load_html(html),
        # `deduplicate` stays off: the text would depend on the pages that this worker has read before.
        text=lambda tree, options: trafilatura.extract(tree, include_comments=False, include_tables=options.tables),
        empty_caches=reset_caches,
    )


def _search_date(tree: HtmlElement, page: Page) -> str | None:
    from htmldate import find_date  # 0.1 s, for a setting that is off by default

    latest = page.fetched_at[:10] or NO_LATEST
    return find_date(copy(tree), extensive_search=False, original_date=True, url=page.final_url, max_date=latest)


def _rejected(reason: str, detail: str) -> ExtractResult:
    return ExtractResult(reason=reason, detail=detail)


def _recycle_worker(megabytes: int | None) -> None:
    """End this process if it has grown by more than `megabytes` since the first call; the pool starts another.

    To be called before the work of a call begins, so that nothing is lost: the sender sees the exit code
    `WORKER_OUTGROWN` and sends the call again.
    """
    if megabytes is not None and STATM.exists() and bytes_of(1) > _initial_bytes() + megabytes * 2**20:
        os._exit(WORKER_OUTGROWN)


@functools.cache
def _initial_bytes() -> int:
    """Resident bytes at the first call."""
    return bytes_of(1)
