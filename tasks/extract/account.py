"""Account of a page: each run of its visible text is kept, or dropped by a rule; and the same as HTML."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from lxml.html import HtmlElement

from tasks.download.warc import Page
from tasks.extract.blocks import KEPT
from tasks.extract.complexity import cut_attributes
from tasks.extract.decode import decode
from tasks.extract.forum_lines import SIGNATURE
from tasks.extract.main_content import find_text, parse
from tasks.extract.walk import Walk

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
p { margin: .3rem 0; padding-left: .6rem; border-left: 4px solid #2a7; white-space: pre-wrap; }
p.dropped { border-color: #c33; color: #777; } small { color: #c33; } .h { font-weight: bold; }
.pre { font-family: monospace; } td:first-child { text-align: right; padding-right: 1em; }
"""
RULES = {
    "beside": "a line of links to the pages beside this one",
    "call": "a call at the end to follow, write or subscribe, with an address, a link or a second sign",
    "class": "the class or id names boilerplate, and it is no part of a sentence, prose, or heading of a text",
    "comments": "a section of comments of readers",
    "contents": "a table of contents",
    "ending": "a heading at the end, without a text, or a line of links, a date or rights at an end of the page",
    "figure": "the text of a figure",
    "form": "a short form",
    "fields": "a form that asks who you are",
    "header": "a short line before the first heading",
    "hidden": "not displayed, and no control opens it; or a role of navigation or dialog",
    "label": "a label of a control, a credit or a heading of links, not a sentence",
    "links": "links are most of it",
    "outside": "outside the container of the main content",
    "permalink": "a sign that links to the heading beside it",
    "post": "a line of a forum's template",
    "related": "after a heading of links to other pages",
    "repeated": "the page says it elsewhere too: in the next block, a paragraph, another caption, or a passage before",
    "signature": "the signature of a post",
    "table": "tables are left out by extract.tables",
    "tag": "an element of navigation, control or media",
    "title": "the title or the date, which have columns of their own",
}


class Part(NamedTuple):
    """Run of the visible text of a page."""

    text: str
    kind: str  # kind of a block, as in `blocks.Block`; "" for text that makes no block
    rule: str  # rule that dropped it; "" for text that is kept
    element: str  # element that the rule applies to, where it is one


def page_account(page: Page, tables: bool = True) -> tuple[str, str, list[Part]] | None:
    """Encoding, main text and parts of a page; None if it has no markup."""
    html, encoding = decode(page.body, page.charset)
    if (tree := parse(cut_attributes(html))) is None:
        return None
    return (encoding, *account(tree, tables))


def account(tree: HtmlElement, tables: bool = True) -> tuple[str, list[Part]]:
    """Main text of a page, and all parts of its visible text in order; the tree is changed.

    Text in JSON-LD is no visible text: the parts of a page whose text it is are empty.
    """
    text, walk = find_text(tree, tables, account=True)
    return text, list(_parts(walk)) if walk else []


def _parts(walk: Walk) -> Iterator[Part]:
    left_out = deque(walk.left_out or ())
    for number, block in enumerate([*walk.blocks, None]):
        while left_out and left_out[0][0] == number:
            _, text, rule, element = left_out.popleft()
            yield Part(text, "", rule, element)
        if block is not None:
            yield Part(block.text, block.kind, block.dropped, _cause(walk, number, block.dropped))
            if block.cut:
                yield Part(block.cut, block.kind, SIGNATURE, "")


def _cause(walk: Walk, number: int, reason: str) -> str:
    """Innermost container that was dropped for a reason and holds a block."""
    return next((name for start, end, rule, name in walk.causes if rule == reason and start <= number < end), "")


def characters_by_rule(parts: Sequence[Part]) -> Counter[str]:
    """Characters of the parts by the rule that dropped them; "" for those that are kept."""
    found: Counter[str] = Counter({KEPT: 0})
    for part in parts:
        found[part.rule] += len(part.text)
    return found


def account_document(name: str, parts: Sequence[Part]) -> str:
    """HTML document with the account of a page."""
    head = f'<!doctype html><meta charset="utf-8"><title>{escape(name)}</title><style>{STYLE}</style>'
    return f"{head}\n<h1>{escape(name)}</h1>\n{account_fragment(parts)}\n"


def account_fragment(parts: Sequence[Part]) -> str:
    """Table of the characters by rule, and all parts in order, without a script or a style."""
    rows = "".join(
        f"<tr><td>{size:,}<td>{escape(rule or 'kept')}<td>{escape(RULES.get(rule, ''))}"
        for rule, size in characters_by_rule(parts).most_common()
    )
    lines = "\n".join(
        f'<p class="{part.kind}{" dropped" if part.rule else ""}" title="{RULES.get(part.rule, "kept")}">'
        f"{escape(part.text)}{f' <small>{part.rule} {escape(part.element)}</small>' if part.rule else ''}</p>"
        for part in parts
    )
    return f"<table>{rows}</table>\n{lines}"
