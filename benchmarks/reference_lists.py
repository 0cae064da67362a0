"""List items and code blocks of documentation pages: how many an engine keeps whole.

    python -m benchmarks.reference_lists

Needs the test data. The items and blocks are those in the containers of benchmarks/reference_pages.py, for six of its
families. An item counts by its first words, up to the first block in it:

kept: a line of the text begins with them. glued: they are in the text, but not at the start of a line. beheaded: only
their end is in the text. absent: their end is not in the text either.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import lxml.html
from lxml.html import HtmlElement

from benchmarks.extract import DATA, as_page, resiliparse, texts_of
from benchmarks.gold_pages import documentation_pages
from benchmarks.pairs import machine
from benchmarks.reference_pages import FAMILIES, SILENT, TOC, remove
from tasks.download.warc import Page
from tasks.extract.decode import decode

LISTED = ("apache2-doc", "debian-policy", "git-doc", "linux-doc-6.1", "python-django-doc", "python3.11-doc")
PER_FAMILY = 60
BLOCKS = frozenset(
    ("p", "div", "ul", "ol", "dl", "table", "pre", "li", "dd", "dt", "br", "blockquote", "h1", "h2", "h3", "h4")
)
MARKERS = "-*•◦ "
BEGINNING, END = 60, 20  # characters of an item that are compared
MIN_CHARACTERS = 8  # shorter items are found anywhere
TAB = 4


class Parts(NamedTuple):
    """Parts of a page that a text should have."""

    items: list[str]
    """First words of the list items."""
    code: list[str]
    """Code blocks of two or more lines, without empty ones."""


def listed_pages() -> Iterator[tuple[str, bytes]]:
    """Yield family and content of the first pages of each family, by name."""
    chosen: dict[str, list[bytes]] = defaultdict(list)
    for name, body in sorted(documentation_pages(DATA)):
        if (family := name.split("/")[1]) in LISTED and len(chosen[family]) < PER_FAMILY:
            chosen[family].append(body)
            yield family, body


def parts_of(family: str, body: bytes) -> Parts:
    """List items and code blocks in the main content of a page."""
    parser = lxml.html.HTMLParser(encoding="utf-8")
    tree = lxml.html.document_fromstring(decode(body)[0].encode("utf-8", "replace"), parser=parser)
    rule = FAMILIES[family]
    items: list[str] = []
    code: list[str] = []
    for container in tree.xpath(rule.content):
        for element in (*container.xpath(rule.excluded), *container.xpath(SILENT), *container.xpath(TOC)):
            remove(element)
        items += (first_words(item) for item in container.iter("li"))
        code += (without_empty_lines(block.text_content().expandtabs(TAB)) for block in container.iter("pre"))
    return Parts([item for item in items if len(item) >= MIN_CHARACTERS], [block for block in code if "\n" in block])


def first_words(item: HtmlElement) -> str:
    """Text of a list item up to its first block that follows text, at most `BEGINNING` characters."""
    found = ""
    for piece in _pieces(item):
        if piece is None and found.strip():
            break
        found += piece or ""
    return " ".join(found.split())[:BEGINNING]


def _pieces(element: HtmlElement) -> Iterator[str | None]:
    """Yield the texts in an element, and None at the start of each block."""
    yield element.text or ""
    for child in element:
        if isinstance(child.tag, str):
            if child.tag in BLOCKS:
                yield None
            yield from _pieces(child)
        yield child.tail or ""


def without_empty_lines(text: str) -> str:
    """Return a text without empty lines and spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def count(parts: Parts, text: str) -> Counter[str]:
    """Counts of the items and blocks of a page by what a text has of them."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    starts, flat = [line.lstrip(MARKERS) for line in lines], " ".join(lines)
    found = Counter(items=len(parts.items), code=len(parts.code))
    for item in parts.items:
        # Markers are stripped on both sides: an item may begin with a dash of its own, as options do.
        words = item.lstrip(MARKERS)
        if any(start.startswith(words) for start in starts):
            found["kept"] += 1
        elif words in flat:
            found["glued"] += 1
        else:
            found["beheaded" if words[-END:] in flat else "absent"] += 1
    whole = without_empty_lines(text)
    found["code_kept"] = sum(block in whole for block in parts.code)
    return found


def total(parts: Iterable[Parts], texts: Iterable[str]) -> Counter[str]:
    """Counts of all pages."""
    return sum((count(one, text) for one, text in zip(parts, texts, strict=True)), Counter())


def main() -> None:
    """Print the counts of each engine."""
    print(machine())
    listed = list(listed_pages())
    parts = [parts_of(family, body) for family, body in listed]
    pages = [as_page("http://docs.example/", body) for _, body in listed]
    engines: dict[str, Callable[[Sequence[Page]], list[str]]] = {
        "structure": lambda some: texts_of("structure", some),
        "trafilatura": lambda some: texts_of("trafilatura", some),
        "resiliparse": resiliparse,
    }
    print(f"{len(pages)} pages")
    for name, extract in engines.items():
        try:
            texts = extract(pages)
        except ImportError:
            print(f"{name}: not installed")
            continue
        found = total(parts, texts)
        kinds = ", ".join(f"{found[kind]} {kind}" for kind in ("kept", "glued", "beheaded", "absent"))
        print(
            f"{name}: of {found['items']} list items {kinds}; {found['code_kept']} of {found['code']} code blocks kept"
        )


if __name__ == "__main__":
    main()
