"""Text of an article in JSON-LD (schema.org), for pages whose markup is filled in by a script."""

import html
import json
from collections.abc import Iterator
from typing import Any

from lxml.etree import ParserError
from lxml.html import HtmlElement, document_fromstring

MAX_SCRIPT = 2**20  # characters of one script; the largest of 3,679 real pages has 30,000
MAX_DEPTH = 20  # of nested values
BREAKS = ("p", "br", "div", "li", "h1", "h2", "h3", "h4", "h5", "h6", "tr", "blockquote")


def article_body(tree: HtmlElement) -> str:
    """Longest `articleBody` of a page that its site declares free to read, a paragraph a line; "" if there is none."""
    found = [text for script in _scripts(tree) for text in _bodies(script, MAX_DEPTH)]
    text = max(found, key=len, default="")
    if "<" in text and ">" in text:
        text = _without_tags(text)
    else:  # a string of JSON has no entities, but those of a template that escapes for HTML
        text = html.unescape(text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _scripts(tree: HtmlElement) -> Iterator[Any]:
    for script in tree.iter("script"):
        text = script.text or ""
        if (script.get("type") or "").strip().lower() != "application/ld+json" or len(text) > MAX_SCRIPT:
            continue
        try:
            yield json.loads(text, strict=False)
        except (ValueError, RecursionError):
            continue


def _bodies(value: Any, depth: int) -> Iterator[str]:
    if depth and isinstance(value, list | dict):
        if isinstance(value, dict) and isinstance(text := value.get("articleBody"), str) and _is_free(value):
            yield text
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _bodies(inner, depth - 1)


def _is_free(article: dict[str, Any]) -> bool:
    return str(article.get("isAccessibleForFree", True)).rpartition("/")[2].lower() != "false"


def _without_tags(markup: str) -> str:
    try:
        tree = document_fromstring(markup)
    except ParserError:  # nothing but tags
        return ""
    for element in tree.iter(*BREAKS):
        element.tail = "\n" + (element.tail or "")
        if element.tag != "br":
            element.text = "\n" + (element.text or "")
    return str(tree.text_content())
