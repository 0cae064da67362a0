"""Extraction of pages: bytes to main text by the chosen engine, in a worker process that may be killed."""

import functools
import itertools
import logging
import os
from collections.abc import Sequence
from copy import copy

import trafilatura
from htmldate import find_date
from lxml.html import HtmlElement
from trafilatura.meta import reset_caches
from trafilatura.settings import Extractor
from trafilatura.utils import load_html

from gpt2train.io.memory_limit import STATM, bytes_of, memory_limit
from tasks.core.document import strip_unstorable
from tasks.download.warc import Page
from tasks.extract.complexity import MAX_ELEMENTS, cut_attributes
from tasks.extract.decode import MAX_NOISE, count_undecodable, decode
from tasks.extract.main_content import parse, structured_text
from tasks.extract.metadata import language_hint, page_title, stated_days
from tasks.extract.prefilter import prefilter_reason
from tasks.extract.settings import WORKER_OUTGROWN, Compare, ExtractOptions, ExtractResult
from tasks.extract.soft_404 import detect_soft_404, page_marks
from tasks.extract.trafilatura_fallbacks import FastOptions
from tasks.extract.trafilatura_patches import Parsed, apply_patches, clear_caches

# The caches of trafilatura, htmldate and justext are cleared after this many pages; they fill within some thousand.
RESET_PAGES = 1000
_page_numbers = itertools.count(1)

# trafilatura warns about each page without a text; here such a page becomes a rejected row with a reason.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
logging.getLogger("htmldate").setLevel(logging.CRITICAL)


def extract_pages(pages: Sequence[Page], options: ExtractOptions) -> list[ExtractResult]:
    """Extract main text and metadata of a group of pages.

    Returns:
        One result per page. Reasons: `undecodable`, `no_text`, `too_many_elements`, those of `prefilter` and those of
        `soft_404`.

    Raises:
        MemoryError: a page exceeds `options.memory_mb`.
        Exception: any error that trafilatura or lxml raises for a hostile page.
    """
    _recycle_worker(options.worker_recycle_mb)
    with memory_limit(options.memory_mb), apply_patches():
        return [extract_page(page, options) for page in pages]


def extract_page(page: Page, options: ExtractOptions) -> ExtractResult:
    """Extract main text and metadata of one page."""
    if next(_page_numbers) % RESET_PAGES == 0:
        reset_caches()
        clear_caches()
    html, encoding = decode(page.body, page.charset)
    # Bytes that are no UTF-8 are replaced by Python, not by the parser, whose rule is another one.
    utf_8 = page.body if encoding == "utf-8" and "\ufffd" not in html else None
    undecodable = count_undecodable(html, utf_8)
    if undecodable > MAX_NOISE * len(html):
        share = undecodable / len(html)
        return _rejected("undecodable", f"{share:.0%} of the characters are noise when read as {encoding}")
    if options.wanted and (found := prefilter_reason(html, options.wanted)):
        return _rejected(*found)
    with apply_patches():
        cut = cut_attributes(html)
        if options.engine == "structure":
            tree = parse(cut if utf_8 is None or cut is not html else utf_8)
        else:
            tree = load_html(cut)
        if tree is None:
            return _rejected("no_text", f"no HTML tree in {len(page.body):,} bytes")
        # The parser adds at most one element a tag (the `p` of a text after it); few pages have so many tags.
        if 2 * html.count("<") + 4 > MAX_ELEMENTS and (elements := int(tree.xpath("count(//*)"))) > MAX_ELEMENTS:
            return _rejected("too_many_elements", f"found {elements:,}, at most {MAX_ELEMENTS:,} expected")
        title, language = page_title(tree), language_hint(tree, page.content_language)
        days = stated_days(tree)
        date = next((day for day in days if day <= page.fetched_at[:10]), None)
        by_fetch_day = bool(days and days[0] != date)
        marks = page_marks(tree, title) if options.detect_soft_404 else None
        if date is None and options.dates:
            date, by_fetch_day = _search_date(tree, page), True
        text = strip_unstorable(main_text(tree, options) or "").strip()
    if marks and (found := detect_soft_404(marks, text)):
        return _rejected(*found)
    if not text:
        return _rejected("no_text", f"no main text in {len(page.body):,} bytes")
    return ExtractResult(text=text, title=title, date=date, language=language, by_fetch_day=by_fetch_day)


def main_text(tree: HtmlElement, options: ExtractOptions) -> str | None:
    """Main text of a page by the chosen engine, to be called inside `apply_patches()`; changes the tree."""
    if options.engine == "structure":
        return structured_text(tree, options.tables)
    return trafilatura.extract(Parsed(tree), options=_options(options.fallbacks, options.tables))


@functools.cache
def _options(compare: Compare, tables: bool) -> Extractor:
    kind = FastOptions if compare == "doubtful" else Extractor
    # dedup=True keeps state per process: the text would depend on the pages that the worker saw before.
    return kind(fast=compare == "never", tables=tables, comments=False, dedup=False)


def _search_date(tree: HtmlElement, page: Page) -> str | None:
    latest = page.fetched_at[:10]
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
