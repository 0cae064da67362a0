"""Text of an article in JSON-LD (schema.org), for pages whose markup is filled in by a script, and its day."""

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from lxml.etree import iterwalk
from lxml.html import HtmlElement

MAX_SCRIPT = 2**20  # characters of one script; the largest of 3,679 real pages has 30,000
MAX_DEPTH = 20  # of nested values
# Marks of templates of XHTML and of old browsers around the value, which search engines pass over.
WRAPPER = re.compile(r"[\s\ufeff]*(?://|/\*)?\s*(?:<!(?:\[CDATA\[|--)\s*(?:\*/)?)?\s*")
DECODER = json.JSONDecoder(strict=False)
DATED = re.compile(r"(?:Article|Posting|Report|WebPage)$")  # types; reviews and comments have days of their own
BREAKS = ("p", "br", "div", "li", "h1", "h2", "h3", "h4", "h5", "h6", "tr", "blockquote")


def scripts_of(tree: HtmlElement) -> Iterator[str]:
    """Yield the sources of the JSON-LD of a page."""
    for script in tree.iter("script"):
        if (script.get("type") or "").strip().lower() == "application/ld+json":
            yield script.text or ""


def article_body(tree: HtmlElement, parse: Callable[[str], HtmlElement | None]) -> str:
    """Longest `articleBody` of a page that its site declares free to read, a paragraph a line; "" if there is none."""
    text = max((one["articleBody"] for one in _stating(tree, "articleBody") if _is_free(one)), key=len, default="")
    if "<" in text and ">" in text:
        inner = parse(text)
        text = "" if inner is None else "".join(_texts(inner))
    else:  # a string of JSON has no entities, but those of a template that escapes for HTML
        text = html.unescape(text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def published(tree: HtmlElement) -> Iterator[str]:
    """Times (ISO) at which the articles and pages of a page say that they were published."""
    return (one["datePublished"] for one in _stating(tree, "datePublished") if _is_dated(one))


def _is_dated(value: dict[str, Any]) -> bool:
    kinds = value.get("@type")
    return any(isinstance(kind, str) and DATED.search(kind) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _stating(tree: HtmlElement, key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a page's JSON-LD that state a text by this key."""
    for text in scripts_of(tree):
        if key not in text or len(text) > MAX_SCRIPT:
            continue
        text = text if '"' in text else html.unescape(text)  # all of it was escaped for HTML
        try:
            value = DECODER.raw_decode(text, WRAPPER.match(text).end())[0]  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            continue
        yield from (one for one in _objects(value, MAX_DEPTH) if isinstance(one.get(key), str))


def _objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if depth and isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _objects(inner, depth - 1)


def _is_free(article: dict[str, Any]) -> bool:
    return str(article.get("isAccessibleForFree", True)).rpartition("/")[2].lower() != "false"


def _texts(tree: HtmlElement) -> Iterator[str]:
    """Texts of a tree, with line breaks at its blocks, which cannot be written into it beside control characters."""
    for event, element in iterwalk(tree, events=("start", "end")):
        if event == "start":
            yield "\n" if element.tag in BREAKS else ""
            yield element.text or ""
        else:
            yield "\n" if element.tag in BREAKS else ""
            yield element.tail or ""
