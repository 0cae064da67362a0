"""Parts of a page that are hidden at first, and that a control shows: tabs, folded rows, answers, alternatives."""

import re
from functools import cached_property

from lxml.etree import XPath
from lxml.html import HtmlElement

from tasks.extract.attribute_names import TOGGLE
from tasks.extract.attribute_rules import AttributeRules, Verdict
from tasks.extract.elements import QUESTION_MARKS, QUESTIONS, UNSHOWN, holds_input, is_closed, is_text, opens_text

CONTROLLED = XPath(
    "//@aria-controls | //@data-target | //@data-bs-target | //a/@href[starts-with(., '#')]", smart_strings=False
)
SCRIPTED = XPath("//@onclick | //a/@href[starts-with(., 'javascript:')]", smart_strings=False)
HAS_SCRIPT = XPath("boolean(descendant::*/@onclick)")
ARGUMENT = re.compile(r"""["']#?([\w:.-]{1,200})["']""")
ICON = re.compile(r"icon|symbol|glyph|\bfa\b|emoji", re.IGNORECASE)  # of fonts whose names of signs are their text
MAX_READ = 5_000_000  # characters of answers; those in each other are read once for each


class Opened:
    """Hidden elements of a page that a reader sees, at once or by a control."""

    def __init__(self, tree: HtmlElement, rules: AttributeRules) -> None:
        self.tree, self.rules = tree, rules
        self._alternatives: dict[HtmlElement, bool] = {}  # elements around hidden ones
        self._unfolds: dict[HtmlElement, bool] = {}  # tables with hidden rows
        self._read = 0  # characters of hidden texts that may be answers

    def is_opened(self, element: HtmlElement, verdict: Verdict) -> bool:
        """Return True for a hidden element that a control of the page opens: a tab, a folded row, a text."""
        if not verdict.closed:
            return False
        outer = element.getparent()
        if outer not in self._alternatives:
            self._alternatives[outer] = _holds_alternatives(outer)
        if self._alternatives[outer] or self._is_answer(element) or _is_slide(element):
            return True
        if element.tag == "tr":
            table = next(element.iterancestors("table"), element)
            if table not in self._unfolds:
                self._unfolds[table] = bool(HAS_SCRIPT(table))
            return self._unfolds[table]
        if not (name := element.get("id")):
            return False
        return name in self._controlled or (name in self._scripted and not holds_input(element) and is_text(element))

    def is_seen(self, element: HtmlElement, verdict: Verdict) -> bool:
        """Return True for words that are shown, but not read aloud: no name of an icon, and no copy of words beside."""
        if not verdict.closed or element.get("aria-hidden") != "true" or is_closed(element):
            return False
        text = "".join(element.text_content().split())
        if ICON.search(element.get("class") or "") or not any(map(str.isalnum, text)):
            return False
        read = [one for one in _beside(element) if not self.rules.named(one.get("class") or "").unseen]
        return all("".join(one.text_content().split()) != text for one in read)

    def _is_answer(self, element: HtmlElement) -> bool:
        """Return True for a text right after the question that opens it: a button, or a line that is one."""
        before = element.getprevious()
        if before is None or self._read > MAX_READ:
            return False
        button, link = before.find(".//button"), before if before.tag == "a" else before.find(".//a")
        control = before if button is None else button
        is_control = (
            before.tag == "button"
            or before.text_content().rstrip().endswith(QUESTION_MARKS)
            or "aria-expanded" in control.attrib
            or "onclick" in control.attrib
            or (button is not None and before.tag in QUESTIONS)
            or TOGGLE.search(control.get("class") or "") is not None
            or (link is not None and "href" not in link.attrib and opens_text(link))
        )
        self._read += len(element.text_content()) if is_control else 0
        return is_control and not holds_input(element) and is_text(element)

    @cached_property
    def _controlled(self) -> frozenset[str]:
        """Ids of the elements that a control or a link of the page opens."""
        return frozenset(one.removeprefix("#") for value in CONTROLLED(self.tree) for one in value.split())

    @cached_property
    def _scripted(self) -> frozenset[str]:
        """Words that the controls of the page give to a script, among them ids of the elements that it opens."""
        return frozenset(one for value in SCRIPTED(self.tree) for one in ARGUMENT.findall(value))


def _holds_alternatives(outer: HtmlElement) -> bool:
    """Return True if all elements in one are hidden, and no text is beside them: a script shows the one that fits."""
    texts = (outer.text, *(inner.tail for inner in outer))
    parts = [inner for inner in outer.iterchildren("*") if inner.tag not in UNSHOWN]
    return len(parts) > 1 and not any(text and text.strip() for text in texts) and all(map(is_closed, parts))


def _is_slide(element: HtmlElement) -> bool:
    """Return True for a text beside another one like it: a script shows one slide or step after the other.

    Each may be in an element of its own.
    """
    name = (element.get("class") or "").partition(" ")[0]
    beside = [one for one in _beside(element) if one.tag == element.tag]
    if not beside and (outer := element.getparent()) is not None and len(outer) == 1:
        beside = [one[0] for one in _beside(outer) if len(one) == 1 and one[0].tag == element.tag]
    is_like = element.tag == "section" or (name and any(name in (one.get("class") or "").split() for one in beside))
    return bool(is_like and beside and is_text(element) and any(map(is_text, beside)) and not holds_input(element))


def _beside(element: HtmlElement) -> list[HtmlElement]:
    return [one for one in (element.getprevious(), element.getnext()) if one is not None]
