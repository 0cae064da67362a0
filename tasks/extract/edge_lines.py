"""Lines of links, dates and rights before and after the text of a page, and rows of letters that link to an index."""

import re
from collections.abc import Sequence

from tasks.extract.article_lines import LABEL, WORDS, YEAR, is_date_text
from tasks.extract.blocks import ENDING, LINKS, MIN_RUNNING, SENTENCE_ENDS, Block

MAX_EDGE = 5  # lines of links at one end of a page; more may be its text
MAX_BESIDE, MAX_IN_SENTENCE = 21, 15  # letters beside the links of such a line (`Return to`, `|`)
MAX_FOOTER = 160  # characters of a line that says when a page was made, and whose it is
MIN_LETTERS = 5  # of an index
RIGHTS = re.compile(r"(?:copyright\b.{0,3})?(?:©|\(c\)) ?|copyright ", re.IGNORECASE)
DATE = re.compile(r"\b(?:\d{1,2}\.? \w{3,9}\.?|\w{3,9}\.? \d{1,2}),? (?:19|20)\d\d\b|\b(?:19|20)\d\d-\d\d-\d\d\b")


def drop_edges(blocks: Sequence[Block], *, paragraphs: bool) -> None:
    """Drop the lines of links at both ends of a page, the footer at its end, and rows of letters.

    Lines after a heading are its text, as `See also`.

    Args:
        blocks: blocks of a page.
        paragraphs: paragraphs are such lines too; those of documentation name further pages.
    """
    for one in blocks:
        if one.links and not one.text[1:2].isalnum() and one.kind != "pre" and _is_letters(one):
            one.dropped = LINKS
    kinds = ("", "p") if paragraphs else ("",)
    for ordered, is_end in ((blocks, False), (blocks[::-1], True)):
        shown = [one for one in ordered if not one.dropped]
        count = 0
        for one in shown[: MAX_EDGE + 1]:
            if not ((one.kind in kinds and _is_links(one)) or (is_end and _is_footer(one))):
                break
            count += 1
        is_heading = is_end and count < len(shown) and shown[count].kind == "h"
        if count <= MAX_EDGE and not is_heading and sum(one.running for one in shown[count:]) >= MIN_RUNNING:
            for one in shown[:count]:
                one.dropped = ENDING


def _is_letters(block: Block) -> bool:
    names = WORDS.findall(block.text)
    return len(names) >= MIN_LETTERS and all(len(name) == 1 for name in names) and 3 * block.links >= len(names)


def _is_links(block: Block) -> bool:
    most = MAX_IN_SENTENCE if block.text.endswith(SENTENCE_ENDS) else MAX_BESIDE
    return block.links > 0 and block.size - block.links <= most


def _is_footer(block: Block) -> bool:
    """Return True for a short line with a date or a year of rights, that is no sentence."""
    if block.kind not in ("", "p") or block.size > MAX_FOOTER or not YEAR.search(block.text):
        return False
    if rights := RIGHTS.match(block.text):
        return block.text[rights.end() : rights.end() + 4].isdigit()
    if found := LABEL.match(block.text):
        return is_date_text(block.text[found.end() :]) or (block.links > 0 and DATE.search(block.text) is not None)
    is_sentence = block.text.endswith(SENTENCE_ENDS)
    return block.links > 0 and not is_sentence and DATE.search(block.text) is not None
