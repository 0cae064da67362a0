"""Formulas in MathML."""

from lxml.html import HtmlElement

TEX = "application/x-tex"  # encoding of an annotation


def formula_text(element: HtmlElement) -> str:
    """Return the text of a formula: the TeX that it was made of if it has that, else its characters."""
    if stated := element.get("alttext"):
        return stated
    for note in element.iter("annotation"):
        if note.get("encoding") == TEX:
            return note.text or ""
    return "".join(element.itertext())
