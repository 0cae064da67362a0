"""Blocks of a page and the reasons for which they are no text of it."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_BLOCK_TAGS = """
address article aside blockquote body center dd details dir div dl dt fieldset figure form h1 h2 h3 h4 h5 h6
header hgroup hr html li listing main ol p plaintext pre section summary table tbody td tfoot th thead tr ul
xmp caption legend
"""
BLOCK_TAGS = frozenset(_BLOCK_TAGS.split())
HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
CODE = frozenset(["pre", "listing", "xmp", "plaintext"])
LISTS = frozenset(["ul", "ol"])
# Reasons for which a container or an element is dropped; those for lines are in `main_content` and `article_lines`.
KEPT = ""
LINKS, MARKED, COMMENT, TOC, HIDDEN = "links", "class", "comments", "contents", "hidden"
TAG, FORM, ASKED, FIGURE, TABLE, PERMALINK = "tag", "form", "fields", "figure", "table", "permalink"
ENDING, REPEATED = "ending", "repeated"
SENTENCE_ENDS = tuple('.!?…。！？।"”»’')  # last characters of a sentence or of a quotation
# The same with the number of a note or a bracket after it.
SENTENCE_END = re.compile(r"""(?:[.!?…。！？।][\s"'”“’‘»)\]\[\d₀-₉⁰¹²³⁴-⁹*†‡↩]{0,9}|["”»’])$""")
MAX_CAPTION = 200  # characters of a sentence below a picture that is its caption
MAX_LINKED = 0.3  # of the characters of a prose, in links
MIN_LONG, MAX_LONG_LINKED = 400, 0.2  # characters of a text that no box beside one has, and share of them in links
MIN_LONG_PROSE = 1000  # the same of prose of the site
MIN_SENTENCES = 3  # of a form that explains what is asked
MIN_ITEMS = 3  # of a list of a recipe
MIN_RUNNING = 80  # characters of a block that is running text wherever it stands
# Characters of Chinese, Japanese and Korean, each of which says as much as three letters: a sentence of 80 letters has
# 25 of them. All limits on sizes are those of letters.
WIDE = re.compile(r"[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")


def letters(text: str) -> int:
    """Characters of a text, those of Chinese, Japanese and Korean as three."""
    return len(text) if text.isascii() else len(text) + 2 * len(WIDE.findall(text))


class Block:
    """Block of text.

    Attributes:
        text: one line; of code, its lines.
        kind: `p`, `h`, `li`, `td`, `pre`, or "" for text outside of these.
        size: letters, see `letters`.
        links: letters in links.
        running: characters of running text, which headings, short lines and links are not.
        pictured: a picture stands right before or after it.
        cut: end of its text that was cut off, the signature of a mail.
        dropped: reason for which the block is no text of the page, `KEPT` if none.
    """

    __slots__ = ("cut", "dropped", "kind", "links", "pictured", "running", "size", "text")

    def __init__(self, text: str, kind: str, links: int) -> None:
        self.text, self.kind, self.size, self.dropped = text, kind, letters(text), KEPT
        self.pictured, self.cut = False, ""
        self.links = min(links, self.size)
        runs = kind != "h" and (self.size > MIN_RUNNING or kind in ("p", "pre", "li")) and 2 * self.links < self.size
        self.running = self.size - self.links if runs else 0


class Contents(NamedTuple):
    """Blocks of a container, the characters of those that were not dropped when it ended, and the main parts in it."""

    start: int
    end: int
    size: int
    links: int
    running: int
    mains: int


def is_mostly_code(blocks: Sequence[Block]) -> bool:
    """Return True if most of the text of blocks is code, which numbers of lines are not."""
    shown = [one for one in blocks if not one.dropped]
    code = [one for one in shown if one.kind == "pre" and not "".join(one.text.split()).isdigit()]
    return 2 * sum(one.size for one in code) > sum(one.size for one in shown)


def is_linked(blocks: Sequence[Block]) -> bool:
    """Return True if at least a quarter of the text of blocks is links."""
    return 4 * sum(one.links for one in blocks) >= sum(one.size for one in blocks)


def is_contents(blocks: Sequence[Block]) -> bool:
    """Return True for a table of contents, by its links; its name may be that of other lists."""
    return is_linked(blocks) and not is_prose(blocks)


def is_described(blocks: Sequence[Block]) -> bool:
    """Return True for items with whole sentences about them and few links, which no list of links has."""
    return not is_linked(blocks) and sum(one.size for one in blocks if one.text.endswith(SENTENCE_ENDS)) >= MIN_RUNNING


def is_long(blocks: Sequence[Block], least: int = MIN_LONG) -> bool:
    """Return True for more text with fewer links than a box beside a text has."""
    shown = [one for one in blocks if not one.dropped]
    links, size = sum(one.links for one in shown), sum(one.size for one in shown)
    return size - links >= least and links <= MAX_LONG_LINKED * size


def is_guidance(blocks: Sequence[Block]) -> bool:
    """Return True for a form with several sentences, which explain it; one that asks to subscribe has one or two."""
    sizes = [one.size for one in blocks if one.text.endswith(SENTENCE_ENDS)]
    return len(sizes) >= MIN_SENTENCES and sum(sizes) >= MIN_SENTENCES * MIN_RUNNING


def is_recipe(blocks: Sequence[Block], linked: float) -> bool:
    """Return True for a part of a recipe that holds a list, with at most such a share of links; not other recipes."""
    live = [one for one in blocks if one.dropped in (KEPT, LINKS)]
    links, size = sum(one.links for one in live), sum(one.size for one in live)
    return sum(one.kind in ("li", "td", "") for one in live) >= MIN_ITEMS and links <= linked * size


def is_sentence(blocks: Sequence[Block]) -> bool:
    """Return True for one paragraph of whole sentences with few words in links."""
    one = blocks[0]
    least = max(MIN_RUNNING, (1 - MAX_LINKED) * one.size)
    return len(blocks) == 1 and one.running >= least and SENTENCE_END.search(one.text) is not None


def is_prose(blocks: Sequence[Block]) -> bool:
    """Return True for whole sentences with few words in links, also before a list, and not the caption of a picture."""
    return sum(one.running for one in blocks) >= MIN_RUNNING and all(
        one.dropped
        or (one.kind == "h" and not one.links)
        or (
            (SENTENCE_END.search(one.text) or (one.size > MIN_RUNNING and one.text[-1] == ":"))
            and one.links <= MAX_LINKED * one.size
            and not (one.pictured and one.size <= MAX_CAPTION)
        )
        for one in blocks
    )
