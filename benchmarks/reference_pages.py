"""Documentation and list-like pages whose main text is known by rules: a container, and what in it is no text.

The rules were written by hand, one line for each family of pages, and checked on pages of it. The text of a page is
the words of its container without the excluded parts. So no page text is stored: the pages are those of the test data.
"""

import hashlib
import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import lxml.html
from lxml.html import HtmlElement

from benchmarks.gold_pages import documentation_pages, shingle_f1
from tasks.extract.decode import decode

PER_FAMILY = 6
MIN_WORDS = 40  # shorter pages are stubs


class Family(NamedTuple):
    """Rules of one family of pages."""

    content: str
    """XPath of the containers of the main text."""
    excluded: str = "./self::node()[false()]"
    """XPath of parts in them that are no text of the page."""


def _class(*names: str) -> str:
    """XPath of elements that have one of these classes."""
    return " or ".join(f"contains(concat(' ', normalize-space(@class), ' '), ' {name} ')" for name in names)


DOCBOOK = Family(
    "//body", f".//*[{_class('navheader', 'navfooter', 'docnav', 'reportbug')} or @id='banner' or @id='title']"
)
SPHINX = f".//*[{_class('headerlink', 'viewcode-back', 'linenos', 'contents')}]"
FAMILIES = {
    "anarchism": Family("//div[contains(@class, 'content')]", f".//*[{_class('book-navigation')}]"),
    "apache2-doc": Family(
        "//div[@id='page-content']", f".//*[{_class('toplang', 'bottomlang', 'top')} or @id='quickview'] | .//button"
    ),
    "cppreference-doc-en-html": Family(
        "//h1[@id='firstHeading'] | //div[@id='mw-content-text']", f".//*[{_class('t-navbar', 'editsection')}]"
    ),
    "debian-handbook": DOCBOOK,
    "debian-policy": DOCBOOK,
    "gimp-help-en": DOCBOOK,
    "git-doc": Family("//div[@id='header'] | //div[@id='content']"),
    "installation-guide-amd64": DOCBOOK,
    "libreoffice-help-de": Family("//div[@id='DisplayArea']"),
    "libreoffice-help-en-us": Family("//div[@id='DisplayArea']"),
    "lilypond-doc-html": Family("//div[@id='main']", f".//*[{_class('nav_table', 'contents')} or @id='footer']"),
    "linux-doc-6.1": Family("//div[@itemprop='articleBody']", SPHINX),
    "openjdk-17-doc": Family("//main", f".//*[{_class('nav-list')}]"),
    "postgresql-doc-15": DOCBOOK,
    "python-django-doc": Family("//div[@id='yui-main']", SPHINX),
    "python3.11-doc": Family("//div[@class='body'][@role='main']", SPHINX),
}
TOC = f".//*[{_class('toc', 'toctree-wrapper', 'tocwrapper')}]"
# No text of a page: scripts, and what the page itself declares as navigation, search or footer.
SILENT = (
    ".//script | .//style | .//head | .//noscript | .//form | .//svg | .//template"
    " | .//*[@role='navigation' or @role='search' or @role='contentinfo']"
)


class ReferencePage(NamedTuple):
    """A page and its main text."""

    family: str
    name: str
    body: bytes
    text: str


def reference_pages(data: Path, per_family: int = PER_FAMILY) -> list[ReferencePage]:
    """Pages of each family, chosen by the hash of their names, with the text by the rules."""
    pages = defaultdict(list)
    for name, body in documentation_pages(data):
        pages[name.split("/")[1]].append((hashlib.sha256(name.encode()).digest(), name, body))
    found = []
    for family, rule in FAMILIES.items():
        texts = ((name, body, text_by(rule, body)) for _, name, body in sorted(pages[family]))
        chosen = [
            ReferencePage(family, name, body, text) for name, body, text in texts if len(text.split()) >= MIN_WORDS
        ]
        found += chosen[:per_family]
    return found


def fit_by_family(pages: list[ReferencePage], texts: list[str]) -> dict[str, float]:
    """F1 of extracted texts for each family, as `gold_pages.shingle_f1`, the mean over its pages."""
    scores: dict[str, list[float]] = {}
    for page, text in zip(pages, texts, strict=True):
        scores.setdefault(page.family, []).append(shingle_f1(page.text, text))
    return {family: statistics.mean(found) for family, found in scores.items()}


def text_by(rule: Family, body: bytes) -> str:
    """Words of a page by the rules of its family."""
    parser = lxml.html.HTMLParser(encoding="utf-8")
    tree = lxml.html.document_fromstring(decode(body)[0].encode("utf-8", "replace"), parser=parser)
    parts = []
    for container in tree.xpath(rule.content):
        for element in (*container.xpath(rule.excluded), *container.xpath(SILENT)):
            remove(element)
        contents = container.xpath(TOC)
        # A table of contents is no text, except on a page that is little else.
        if 2 * sum(len(one.text_content()) for one in contents) < len(container.text_content()):
            for element in contents:
                remove(element)
        parts += words_of(container)
    return " ".join(" ".join(parts).split())


def words_of(container: HtmlElement) -> list[str]:
    """Texts of the blocks of a container."""
    for element in container.iter("br", "p", "div", "li", "td", "th", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "pre"):
        element.text = " " + (element.text or "")
        element.tail = " " + (element.tail or "")
    for element in container.xpath(".//*[@hidden]"):  # of several alternatives a script shows one
        element.text = " " + (element.text or "")
    return [container.text_content()]


def remove(element: HtmlElement) -> None:
    """Remove an element, but not the text after it."""
    if element.getparent() is not None:
        element.drop_tree()
