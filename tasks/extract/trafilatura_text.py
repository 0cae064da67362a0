"""Main text of a page by trafilatura (`extract.engine = "trafilatura"`), in half its time by `trafilatura_patches`."""

import functools
import logging

import trafilatura
from lxml.html import HtmlElement
from trafilatura.meta import reset_caches
from trafilatura.settings import Extractor
from trafilatura.utils import load_html

from tasks.extract.settings import Compare, ExtractOptions
from tasks.extract.trafilatura_fallbacks import FastOptions
from tasks.extract.trafilatura_patches import Parsed, apply_patches, clear_caches

# trafilatura warns about each page without a text; here such a page becomes a rejected row with a reason.
logging.getLogger("trafilatura").setLevel(logging.CRITICAL)


def parse(html: str) -> HtmlElement | None:
    """Parse a page; None if there is nothing in it."""
    return load_html(html)


def trafilatura_text(tree: HtmlElement, options: ExtractOptions) -> str | None:
    """Main text of a page, which is changed; to be called inside `apply_patches()`.

    Raises:
        Exception: any error that trafilatura raises for a hostile page.
    """
    return trafilatura.extract(Parsed(tree), options=_options(options.fallbacks, options.tables))


def empty_caches() -> None:
    """Empty the caches of trafilatura, justext and the patches."""
    reset_caches()
    clear_caches()


@functools.cache
def _options(compare: Compare, tables: bool) -> Extractor:
    kind = FastOptions if compare == "doubtful" else Extractor
    # dedup=True keeps state per process: the text would depend on the pages that the worker saw before.
    return kind(fast=compare == "never", tables=tables, comments=False, dedup=False)


__all__ = ["apply_patches", "empty_caches", "parse", "trafilatura_text"]
