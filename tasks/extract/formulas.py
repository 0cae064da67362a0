"""Formulas of a page, each once, and the marks of superscripts that would change a number.

A formula is the TeX that it was made of, if the page states it, else its characters. Its converters show it in several
forms at once: glyphs for the eye, MathML for the ear, TeX in a script or an attribute, an image with its TeX.
"""

import contextlib
import html
import itertools
import re
from urllib.parse import unquote

from lxml.etree import ParserError
from lxml.html import HtmlElement, document_fromstring

TEX = frozenset(["application/x-tex", "application/x-latex", "tex", "latex", "text/x-tex"])  # encodings of annotations
CDATA = re.compile(r"%?\s*<!\[CDATA\[|%?\s*\]\]>")
# Classes of the elements that hold all forms of one formula: MediaWiki, KaTeX, MathJax 2; MathJax 3 has a tag for it.
WRAPPERS = re.compile(
    r"(?:^|\s)(?:mwe-math-element|katex(?:-display)?|MathJax(?:_(?:Preview|Display|SVG|SVG_Display|CHTML|MathML))?"
    r"|MJXc-display|mjx-chtml|mjx-full-width)(?:\s|$)"
)
IMAGES = re.compile(r"(?:^|\s)(?:mwe-math-fallback-image-(?:inline|display)|tex|latex|math|formula(?:Inl|Dsp))(?:\s|$)")
COMMAND = re.compile(r"\\[A-Za-z]+ ?\{|[_^]\{")  # of TeX, which no path of Windows has
# Addresses of images that servers make of the TeX after them: CodeCogs, mathTeX and mimeTeX.
SERVER = re.compile(r"/(?:svg|png|gif)\.(?:image|latex)\?|/(?:math|mime)tex\.cgi\?")
MAX_FORMS = 3  # elements between a formula and its script
SIMPLE = re.compile(r"[-−+]?[\w.,]+")
JOINTS = {"msup": "^", "msub": "_", "msubsup": "_^", "mfrac": "/"}  # signs between the parts of an element
EXPONENT = re.compile(r"[-−+]?\d[\d.,]*")
BASE = re.compile(r"\)$|(?<!\w)[^\W\d_ghlms]$")  # a variable; letters of units are none
VARIABLE = re.compile(r"[-−+]?[ijkmnpqtxyN]")  # after a number; other letters make it an ordinal, as in 1st, 3e
EXPRESSION = re.compile(r"[-−+]?[\w.]+(?:[-−+·*/][\w.]+)+")


def formula_text(element: HtmlElement) -> str:
    """Text of a formula in MathML."""
    if stated := element.get("alttext") or element.get("data-latex"):
        return stated
    for note in element.iter("annotation"):
        if (note.get("encoding") or "").lower() in TEX:
            return note.text or ""
    return _linear(element)


def script_text(script: HtmlElement) -> str:
    """Formula in a script of MathJax 2, which kramdown writes too; "" for any other script."""
    kind = (script.get("type") or "").strip().lower()
    if kind.startswith("math/tex"):
        return CDATA.sub("", script.text or "")
    return _parsed(script.text or "") if kind.startswith("math/mml") else ""


def image_text(image: HtmlElement) -> str:
    """TeX of an image of a formula, "" for any other image or if the formula stands beside it."""
    text = image.get("alt") or ""
    named = text != "" and (text[0] == text[-1] == "$" or IMAGES.search(image.get("class") or ""))
    if not named and not COMMAND.search(text):
        source = image.get("src") or ""
        if (served := SERVER.search(source)) is None:
            return ""
        text = html.unescape(unquote(source[served.end() :].replace("&space;", " ")))
    before = image.getprevious()
    return "" if before is not None and not (before.tail or "").strip() and only_formula(before) is not None else text


def wrapped_text(element: HtmlElement) -> str:
    """Formula of an element that holds all forms of it; "" if a script after it states it."""
    last = element
    for after in itertools.islice(element.itersiblings(), MAX_FORMS):
        if (last.tail or "").strip():
            break
        if after.tag == "script" and (after.get("type") or "").startswith("math/"):
            return ""
        last = after
    if stated := next((one.get("data-latex") for one in element.iter() if one.get("data-latex")), ""):
        return stated
    for inner in element.iter("math", "script", "img"):
        if stated := READERS[inner.tag](inner):
            return stated
    stated = next((one.get("data-mathml") for one in element.iter() if one.get("data-mathml")), "")
    return _parsed(stated or "") or "".join(element.itertext())


def only_formula(element: HtmlElement) -> HtmlElement | None:
    """Return the MathML of an element that has no other text; None if there is none, or other text."""
    found = next(element.iter("math"), None)
    if found is None or "".join(element.itertext()).strip() != "".join(found.itertext()).strip():
        return None
    return found


def script_marks(element: HtmlElement, before: str) -> tuple[str, str]:
    """Signs before and after a `sup` or `sub`, if a number, `before` too, would be another one without them."""
    text = "".join(element.itertext()).strip()
    is_number = before[-1:].isdecimal()
    if element.tag == "sub":
        return ("_", "") if is_number and text.isdecimal() else ("", "")
    after = element.getnext()
    if is_number and (element.tail or "").strip() in ("/", "⁄") and after is not None and after.tag == "sub":
        return " ", ""  # a fraction after a whole number
    if not (is_number or (BASE.search(before) and next(element.iter("a"), None) is None)):
        return "", ""
    if EXPONENT.fullmatch(text) or (is_number and VARIABLE.fullmatch(text)):
        return "^", ""
    return ("^(", ")") if EXPRESSION.fullmatch(text) else ("", "")


def _parsed(markup: str) -> str:
    """Text of a formula whose MathML is the text of a script or an attribute."""
    if "<math" not in markup:
        return ""
    with contextlib.suppress(ParserError):
        return next(map(formula_text, document_fromstring(markup).iter("math")), "")
    return ""


def _linear(element: HtmlElement) -> str:
    """Characters of MathML without its TeX, in a line."""
    tag = element.tag
    if not isinstance(tag, str) or tag.startswith("annotation"):
        return ""
    parts = [(_linear(child), child.tail or "") for child in element]
    joints = JOINTS.get(tag, ()) if len(parts) > 1 else ()
    text = element.text or ""
    for number, (part, tail) in enumerate(parts):
        # White space keeps the numbers apart, as in MathML that is indented.
        is_glued = number and not (text[-1:].isspace() or part[:1].isspace())
        if is_glued and number <= len(joints):
            text += joints[number - 1] + (part if SIMPLE.fullmatch(part) else f"({part})")
        else:
            text += (" " if is_glued and tag in ("mtable", "mtr") else "") + part
        text += tail
    return text


READERS = {"math": formula_text, "script": script_text, "img": lambda image: image.get("alt") or ""}
