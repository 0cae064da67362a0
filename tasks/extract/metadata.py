"""Metadata stated by a page: title, language, publication date."""

import datetime
import re
from collections.abc import Iterable, Iterator

from lxml.html import HtmlElement

from tasks.core.document import strip_unstorable
from tasks.extract.elements import stated_title
from tasks.extract.json_ld import published

MAX_TITLE = 500  # characters
LANGUAGE = re.compile(r"\s*([a-z]{2,3})(?![a-z])", re.IGNORECASE)
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
DATE = re.compile(r"\s*((?:19|20)\d\d)-?(\d\d)-?(\d\d)(?!\d)")
# Meta tags that state the publication date, the most specific first.
DATE_NAMES = (
    "article:published_time",
    "datepublished",
    "og:article:published_time",
    "dc.date.issued",
    "dcterms.issued",
    "dc.date",
    "dcterms.date",
    "citation_publication_date",
    "parsely-pub-date",
    "sailthru.date",
    "pubdate",
    "date",
)


def page_title(tree: HtmlElement) -> str | None:
    """The `<title>` of a page on one line, else its `og:title`, else its first heading, else None."""
    for stated in (
        lambda: stated_title(tree),
        lambda: next((meta.get("content") for meta in tree.iterfind(".//meta[@property='og:title']")), None),
        lambda: None if (heading := tree.find(".//h1")) is None else heading.text_content(),
    ):
        if line := " ".join(strip_unstorable(stated() or "").split())[:MAX_TITLE]:
            return line
    return None


def language_hint(tree: HtmlElement, header: str | None = None) -> str | None:
    """Language stated by a page (ISO 639, lower case, `en` for `en-US`); it may be wrong.

    Args:
        tree: the page; its `lang` attribute is used first, then its meta tags.
        header: Content-Language of the HTTP response, used last: many servers send the same value for all pages.
    """
    for value in _stated_languages(tree, header):
        if found := LANGUAGE.match(value or ""):
            return found.group(1).lower()
    return None


def _stated_languages(tree: HtmlElement, header: str | None) -> Iterator[str | None]:
    yield from (tree.get("lang"), tree.get(XML_LANG), tree.get("xml:lang"))
    for meta in tree.iter("meta"):
        if (meta.get("http-equiv") or "").lower() == "content-language" or meta.get("property") == "og:locale":
            yield meta.get("content")
    yield header


def publication_day(stated: list[str], latest: str) -> str | None:
    """Most specific of the stated days that is at most `latest`; None if there is none.

    Without a latest day, that of the fetch, the earliest one: a later one may be in the future.
    """
    return next((day for day in stated if day <= latest), None) if latest else min(stated, default=None)


def stated_days(tree: HtmlElement) -> list[str]:
    """Publication days (ISO) stated by the tags of a page, the most specific first, or else by its JSON-LD."""
    stated: dict[str, str] = {}
    for element in tree.iter("meta", "time"):
        name = (element.get("property") or element.get("name") or element.get("itemprop") or "").lower()
        value = element.get("content") or element.get("datetime")
        if name in DATE_NAMES and value:
            stated.setdefault(name, value)
    return _days(stated.get(name, "") for name in DATE_NAMES) or _days(published(tree))


def _days(values: Iterable[str]) -> list[str]:
    return [day for one in map(DATE.match, values) if one and (day := _day("-".join(one.groups())))]


def _day(text: str) -> str | None:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        return None
