"""Text of code: its lines and their indentation, whatever a highlighter made of them."""

from collections.abc import Callable

from lxml.html import HtmlElement

from tasks.extract.attribute_names import OWN_LINES
from tasks.extract.attribute_rules import AttributeRules
from tasks.extract.blocks import HIDDEN, MARKED, TAG
from tasks.extract.formulas import script_marks

# Classes of code in other elements than `pre`, a row or a `div` a line: Scribble, Doxygen, GitHub, SyntaxHighlighter,
# CodeMirror 6; those of the lines in it, where themes of blogs have such a name too.
CODE_NAMES = frozenset(["RktBlk", "SVerbatim", "fragment", "blob-wrapper", "highlight", "container", "cm-content"])
LINE_NAMES = {"fragment": "line", "cm-content": "cm-line"}
LINES = frozenset(["tr", "div", "li", "p"])
TABLE_PARTS = frozenset(["table", "tbody", "td", "th", "thead", "tr"])
SCRIPTS = frozenset(["sub", "sup"])

LeaveOut = Callable[[HtmlElement, str], None]


def is_code(element: HtmlElement, tag: str, name: str) -> bool:
    """Return True for the code of a highlighter, by the first name of its class."""
    name = name.partition(" ")[0]
    if name not in CODE_NAMES:
        return False
    if name == "container":
        outer = element.getparent()
        return outer.tag == "td" and outer.get("class") == "code"
    if name in ("highlight", "blob-wrapper"):
        return tag == "table" and "blob-code" in (element.xpath("string(.//td[last()]/@class)"))
    return name not in LINE_NAMES or any(LINE_NAMES[name] in (line.get("class") or "").split() for line in element)


def code_text(element: HtmlElement, rules: AttributeRules, leave_out: LeaveOut) -> str:
    """Text of code without empty lines around it; `leave_out` is called for the elements that are none of it."""
    parts: list[str] = []
    _read(element, parts, rules, leave_out)
    text = "".join(parts).replace("\r\n", "\n").replace("\xa0", " ")
    lines = [line.rstrip() for line in text.split("\n")]
    full = [number for number, line in enumerate(lines) if line]
    return "\n".join(lines[full[0] : full[-1] + 1]) if full else ""


def _read(element: HtmlElement, parts: list[str], rules: AttributeRules, leave_out: LeaveOut) -> None:
    if element.text and not (element.tag in TABLE_PARTS and element.text.isspace() and element.tag != "td"):
        parts.append(element.text)
    for child in element:
        if child.tag == "br":
            parts.append("\n")
        elif isinstance(child.tag, str):
            verdict = rules.verdict(child, child.tag)
            if verdict.drop or verdict.unseen or verdict.hidden:
                leave_out(child, TAG if verdict.drop else HIDDEN if verdict.hidden else MARKED)
            else:
                marks = script_marks(child, "".join(parts[-2:])) if child.tag in SCRIPTS else ("", "")
                start = len(parts)
                parts += filter(None, marks[:1])
                _read(child, parts, rules, leave_out)
                parts += filter(None, marks[1:])
                is_line = child.tag == "tr" or (
                    (child.tag in LINES or OWN_LINES.search(child.get("style") or ""))
                    and not (child.tail or "").startswith(("\n", "\r\n"))
                    and not (len(parts) == start and element.tag == "td")  # an empty place for a number
                )
                if is_line and not (len(parts) > start and parts[-1].endswith("\n")):
                    parts.append("\n")
        if child.tail and not (child.tag in TABLE_PARTS and child.tail.isspace()):
            parts.append(child.tail)
