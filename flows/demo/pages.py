"""Pages of the demo site: one function from (host, path) to HTML.

A page is a pure function of its address. A module is imported when its page is requested, one page at a time.
"""

import contextlib
import importlib
import pydoc_data.topics
import re
import threading
from html import escape, unescape

from flows.demo import site_index
from flows.demo.render import SemanticDoc, module_article, topic_article
from flows.demo.site_index import JOURNAL, LIBRARY, MIRROR, PACKAGES, REFERENCE

QUOTED_CHARS = 1200  # characters of each topic that the reading notes quote
TAG = re.compile(r"<[^>]+>")
BLOCK_END = re.compile(r"</(?:h\d|p|pre|ul)>\n")

_lock = threading.Lock()  # imports are not safe in parallel, and the GIL makes parallel rendering useless

ABOUT = """About this site

These pages are the documentation that comes with every installation of Python, as the interpreter's own help system
knows it. Nobody has to fetch them from anywhere: a small server on this machine renders them when they are asked for,
and forgets them again. They are real pages in the sense that matters here. They have navigation that repeats from page
to page, headings, paragraphs, examples, lists, and now and then a mistake, and they were written by many people over
many years for readers who wanted to know something.

The list of addresses that goes with the site holds more than good pages. Some entries are repeated, some lead to files
that are no pages, some are not even addresses. A few pages answer slowly, or not at all, or only when they are asked
twice. Others are written in languages other than English, or hold next to nothing. A program that reads the web has to
cope with all of this, and it should be able to say afterwards what it did with each of them and why.
"""


class PageNotFoundError(Exception):
    """No page has this address."""


def render_page(host: str, path: str) -> bytes:
    """Render the HTML of a page.

    Raises:
        PageNotFoundError: no page has this address.
    """
    with _lock:
        html = _page(host, path)
    return html.encode("utf-8")


def import_packages() -> None:
    """Import the packages of the listed pages; run it in a thread, since the imports would delay the first pages."""
    for name in site_index.package_modules():
        # One import at a time: threads that import modules which import each other can see half-initialized modules.
        with _lock, contextlib.suppress(ImportError):  # reported when the page is requested
            importlib.import_module(name)


def _page(host: str, path: str) -> str:
    name = path.strip("/").removesuffix(".html")
    if host in (LIBRARY, MIRROR):
        known = site_index.library_modules() if host == LIBRARY else site_index.mirrored_modules()
        return layout(name, _module(name, known), site_index.library_modules(), "The Python library")
    if host == PACKAGES:
        known = site_index.package_modules()
        return layout(name, _module(name, known), known, "Installed packages")
    if host == REFERENCE:
        topic = name.removeprefix("topics/")
        if topic not in pydoc_data.topics.topics:
            raise PageNotFoundError(path)
        names = [f"topics/{other}" for other in site_index.topics()]
        return layout(topic, topic_article(topic), names, "The Python language reference")
    if host == JOURNAL:
        return layout(name, _journal(name), ["about"], "A reader's journal")
    raise PageNotFoundError(host)


def _module(name: str, known: list[str]) -> str:
    if name not in known:
        raise PageNotFoundError(name)
    try:
        return module_article(name)
    except ImportError as error:
        raise PageNotFoundError(f"{name}: {error}") from error


def _journal(name: str) -> str:
    folder, _, rest = name.rpartition("/")
    if folder == "essays" and rest in site_index.LANGUAGES:
        return essay((site_index.HERE / "texts" / f"{rest}.txt").read_text("utf-8"))
    if folder == "typeset" and rest in site_index.MOJIBAKE:
        return add_mojibake(module_article(rest))
    if name in site_index.SHORT_PAGES:
        return f"<p>{escape(site_index.SHORT_PAGES[name])}</p>"
    if name == "reading-notes":
        return reading_notes()
    if name == "about":
        return essay(ABOUT)
    if name == "flaky":
        return essay(ABOUT.replace("About this site", "The same, at the second try"))
    raise PageNotFoundError(name)


def layout(title: str, article: str, names: list[str], site: str) -> str:
    """Render a complete page: the article between the links to the named pages and the footer of a site."""
    links = [escape(f"/{name}.html") for name in names]
    menu = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)} - {escape(site)}</title>\n"
        f'</head>\n<body>\n<header><a href="/">{escape(site)}</a></header>\n<nav><ul>{menu}</ul></nav>\n'
        f"<main>\n<article>\n{article}\n</article>\n</main>\n"
        f'<footer><p><a href="/">Index</a> | <a href="#">Top of the page</a></p></footer>\n</body>\n</html>\n'
    )


def essay(text: str) -> str:
    """Render prose: the first line is the heading, the rest are paragraphs."""
    heading, _, rest = text.strip().partition("\n")
    joined = re.split(r"\n\n+", rest.strip()) if "\n\n" in rest.strip() else rest.strip().split("\n")
    paragraphs = "\n".join(f"<p>{escape(' '.join(part.split()))}</p>" for part in joined)
    return f"<h1>{escape(heading)}</h1>\n{paragraphs}"


def reading_notes() -> str:
    """Render one page that quotes the beginning of every topic of the reference.

    It contains passages of any test set that is drawn from the topics, so decontamination has to find it.
    """
    parts = ["<h1>Reading notes</h1>", "<p>I am reading the language reference from end to end. What struck me:</p>"]
    for topic in site_index.topics():
        whole = unescape(TAG.sub("", BLOCK_END.sub("\n\n", topic_article(topic))))
        parts.append(f"<h2>On {escape(topic)}</h2>\n{SemanticDoc().markdown(whole[:QUOTED_CHARS], 3)}")
    return "\n".join(parts)


def add_mojibake(article: str) -> str:
    """Add mojibake that ftfy repairs: typographic punctuation in UTF-8, decoded as Windows-1252."""
    typeset = re.sub(r"(?<=\w)&#x27;(?=\w)", "’", article).replace(" -- ", " — ").replace("...", "…")
    typeset = re.sub(r"(?<=[\w,.;]) (?=(?:that|which|and|but) )", " – ", typeset, count=40)
    return typeset.encode("utf-8").decode("cp1252")
