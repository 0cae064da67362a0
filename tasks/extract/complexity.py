"""Limits on the markup of a page, against quadratic parsing time.

libxml2 and lxml scan all attributes of an element to find or add one: 30,000 attributes on one element take 5 CPU s,
and a page of 16 MiB can hold two million. Nesting needs no limit here: libxml2 cuts it at 256 levels, and at 2,048 for
the engine structure.
"""

import functools
import re

MAX_ATTRIBUTES = 500  # per element; the maximum in 3,679 real pages is 64
MAX_ELEMENTS = 100_000  # per page; the maximum in the same pages is 14,946

# A tag by the HTML standard: a name, then attributes until `>`, with or without white space between them. A quote that
# nothing closes reaches to the end of the page. Possessive quantifiers (`*+`) keep the time linear.
ATTRIBUTE = r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"?+|'[^']*+'?+|[^\s>]++)?+)?+"""
COMMENT = "!--[^-]*+(?:-(?!->)[^-]*+)*+"
RAW_TEXT = r"[^<]*+(?:<(?!/(?ai:script|style)\b)[^<]*+)*+"
TAG = re.compile(
    # Comments and the contents of scripts and styles contain no tags; one match covers each of them.
    rf"<(?:{COMMENT}|(?:(?ai:script|style)(?=[\s/>])(?P<raw>(?:{ATTRIBUTE})*+)>{RAW_TEXT})"
    rf"|[a-zA-Z][^\s/>]*+(?P<plain>(?:{ATTRIBUTE})*+))"
)
ONE_ATTRIBUTE = re.compile(ATTRIBUTE)
MIN_ATTRIBUTE = 2  # characters of the shortest attribute, with the space before it


def cut_attributes(html: str, limit: int = MAX_ATTRIBUTES) -> str:
    """Remove the attributes of each element beyond the first `limit`; returns the same string if none has more."""
    if _within(limit).fullmatch(html):
        return html
    kept, at = [], 0
    for start, end in map(re.Match.span, TAG.finditer(html)):
        if end - start <= MIN_ATTRIBUTE * limit:
            continue
        tag = TAG.match(html, start)
        assert tag is not None
        group = tag.lastgroup
        if group is None or tag.end(group) - tag.start(group) <= MIN_ATTRIBUTE * limit:
            continue
        for number, attribute in enumerate(ONE_ATTRIBUTE.finditer(html, tag.start(group), tag.end(group))):
            if number == limit:
                kept.append(html[at : attribute.start()])
                at = tag.end(group)
                if html.startswith("/", at):
                    kept.append(" ")  # else the slash would belong to the value before it
                break
    return "".join([*kept, html[at:]]) if kept else html


@functools.cache
def _within(limit: int) -> re.Pattern[str]:
    """Expression of the pages whose tags have at most `limit` attributes: half the time of a search for the others."""
    few = f"(?:{ATTRIBUTE}){{0,{limit}}}+"
    script = rf"(?ai:script|style)(?=[\s/>]){few}>{RAW_TEXT}"
    tag = rf"[a-zA-Z][^\s/>]*+(?:>|{few}(?!{ATTRIBUTE}))"
    return re.compile(f"[^<]*+(?:<(?:/|{script}|{tag}|{COMMENT}|(?![a-zA-Z]|!--))[^<]*+)*+")
