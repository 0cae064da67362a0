"""One page: bytes to main text, by trafilatura. Runs in a worker process that may be killed."""

import functools
import logging
from collections.abc import Sequence
from copy import copy

import trafilatura
from htmldate import find_date
from lxml.html import HtmlElement
from trafilatura.settings import Extractor
from trafilatura.utils import load_html

from tasks.download.warc import Page
from tasks.html.comparison import Sparing
from tasks.html.decode import MAX_NOISE, decode, noise, storable
from tasks.html.early import early_reason
from tasks.html.flags import flag, marks_of
from tasks.html.hints import language_hint, page_title, stated_date
from tasks.html.recipe import Compare, Extracted, Recipe
from tasks.html.sandbox import end_if_worn, memory_limit, wear
from tasks.html.shortcuts import Parsed, shortcuts

# trafilatura warns for each page that it gives up; here such a page becomes a row with a reason.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
logging.getLogger("htmldate").setLevel(logging.CRITICAL)


def extract_pages(pages: Sequence[Page], recipe: Recipe) -> list[Extracted]:
    """Main text and title of some pages, each on its own.

    Returns:
        Text and hints of each; or its reason: `undecodable`, `no_text`, those of `early` and those of `flags`.

    Raises:
        Anything that trafilatura or lxml raises for a hostile page; `MemoryError` at the limit.
    """
    end_if_worn(recipe.worn_mb)
    with memory_limit(recipe.memory_mb), shortcuts():
        return [extract_page(page, recipe) for page in pages]


def extract_page(page: Page, recipe: Recipe) -> Extracted:
    """Main text and hints of one page, or why it has none."""
    wear.add()
    html, encoding = decode(page.body, page.charset)
    noisy = noise(html)
    if noisy > MAX_NOISE * len(html):
        share = noisy / len(html)
        return Extracted(
            reason="undecodable", detail=f"{share:.0%} of the characters are noise when read as {encoding}"
        )
    if recipe.wanted and (early := early_reason(html, recipe.wanted)):
        return Extracted(reason=early[0], detail=early[1])
    with shortcuts():
        tree = load_html(html)
        if tree is None:
            return Extracted(reason="no_text", detail=f"no HTML tree in {len(page.body):,} bytes")
        title, language, date = (
            page_title(tree),
            language_hint(tree, page.content_language),
            stated_date(tree, page.fetched_at),
        )
        marks = marks_of(tree, title) if recipe.flags else None
        if date is None and recipe.dates:
            date = _search_date(tree, page)
        text = storable(main_text(tree, recipe) or "").strip()
    if marks and (found := flag(marks, text)):
        return Extracted(reason=found.reason, detail=found.detail)
    if not text:
        return Extracted(reason="no_text", detail=f"no main text in {len(page.body):,} bytes")
    return Extracted(text=text, title=title, date=date, language=language)


def main_text(tree: HtmlElement, recipe: Recipe) -> str | None:
    """trafilatura's text of a page, inside `shortcuts()`; the tree is used up."""
    return trafilatura.extract(Parsed(tree), options=_options(recipe.compare, recipe.tables))


@functools.cache
def _options(compare: Compare, tables: bool) -> Extractor:
    kind = Sparing if compare == "doubtful" else Extractor
    # dedup=True would keep a memory per process: the text would depend on which worker saw which pages.
    return kind(fast=compare == "never", tables=tables, comments=False, dedup=False)


def _search_date(tree: HtmlElement, page: Page) -> str | None:
    latest = page.fetched_at[:10]
    return find_date(copy(tree), extensive_search=False, original_date=True, url=page.final_url, max_date=latest)
