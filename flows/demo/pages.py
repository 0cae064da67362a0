"""The pages of the demo site: one function from (host, path) to HTML.

A page is a pure function of its address. Modules are imported when their page is asked for, one page at a time.
"""

import contextlib
import importlib
import pydoc_data.topics
import re
import threading
from html import escape, unescape

from flows.demo import catalogue
from flows.demo.catalogue import JOURNAL, LIBRARY, MIRROR, PACKAGES, REFERENCE
from flows.demo.render import SemanticDoc, module_article, topic_article

QUOTED = 1200  # characters of each topic that the reading notes quote
TAG = re.compile(r"<[^>]+>")
BLOCK_END = re.compile(r"</(?:h\d|p|pre|ul)>\n")

_rendering = threading.Lock()  # rendering is one core's work anyhow, and it imports

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


class NoPage(Exception):
    """There is nothing at this address."""


def page(host: str, path: str) -> bytes:
    """The HTML of a page.

    Raises:
        NoPage: there is none at this address.
    """
    with _rendering:
        html = _page(host, path)
    return html.encode("utf-8")


def import_ahead() -> None:
    """Import the packages whose pages will be asked for, in the background: the first page of each would take long."""
    for name in catalogue.package_modules():
        # One import at a time, whoever asks: two threads that import modules which import each other get half of them.
        with _rendering, contextlib.suppress(ImportError):  # told when the page is asked for
            importlib.import_module(name)


def _page(host: str, path: str) -> str:
    name = path.strip("/").removesuffix(".html")
    if host in (LIBRARY, MIRROR):
        known = catalogue.library_modules() if host == LIBRARY else catalogue.mirrored_modules()
        links = [f"/{module}.html" for module in catalogue.library_modules()]
        return layout(name, _module(name, known), links, "The Python library")
    if host == PACKAGES:
        links = [f"/{module}.html" for module in catalogue.package_modules()]
        return layout(name, _module(name, catalogue.package_modules()), links, "Installed packages")
    if host == REFERENCE:
        topic = name.removeprefix("topics/")
        if topic not in pydoc_data.topics.topics:
            raise NoPage(path)
        links = [f"/topics/{other}.html" for other in catalogue.topics()]
        return layout(topic, topic_article(topic), links, "The Python language reference")
    if host == JOURNAL:
        return layout(name, _journal(name), ["/about.html"], "A reader's journal")
    raise NoPage(host)


def _module(name: str, known: list[str]) -> str:
    if name not in known:
        raise NoPage(name)
    try:
        return module_article(name)
    except ImportError as error:
        raise NoPage(f"{name}: {error}") from error


def _journal(name: str) -> str:
    folder, _, rest = name.rpartition("/")
    if folder == "essays" and rest in catalogue.LANGUAGES:
        return essay((catalogue.HERE / "texts" / f"{rest}.txt").read_text("utf-8"))
    if folder == "typeset" and rest in catalogue.MOJIBAKE:
        return damage(module_article(rest))
    if name in catalogue.SHORT:
        return f"<p>{escape(catalogue.SHORT[name])}</p>"
    if name == "reading-notes":
        return reading_notes()
    if name in ("about", "flaky"):
        return (
            essay(ABOUT) if name == "about" else essay(ABOUT.replace("About this site", "The same, at the second try"))
        )
    raise NoPage(name)


def layout(title: str, article: str, links: list[str], site: str) -> str:
    """A whole page: the article between the navigation and the footer that every page of a site repeats."""
    menu = "".join(f'<li><a href="{escape(link)}">{escape(link)}</a></li>' for link in links)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)} - {escape(site)}</title>\n"
        f'</head>\n<body>\n<header><a href="/">{escape(site)}</a></header>\n<nav><ul>{menu}</ul></nav>\n'
        f"<main>\n<article>\n{article}\n</article>\n</main>\n"
        f'<footer><p><a href="/">Index</a> | <a href="#">Top of the page</a></p></footer>\n</body>\n</html>\n'
    )


def essay(text: str) -> str:
    """Prose: the first line is the heading, paragraphs follow."""
    heading, _, rest = text.strip().partition("\n")
    joined = re.split(r"\n\n+", rest.strip()) if "\n\n" in rest.strip() else rest.strip().split("\n")
    paragraphs = "\n".join(f"<p>{escape(' '.join(part.split()))}</p>" for part in joined)
    return f"<h1>{escape(heading)}</h1>\n{paragraphs}"


def reading_notes() -> str:
    """One page that quotes the beginning of every topic of the reference: it holds passages of any test set that is
    drawn from them, which decontamination has to find."""
    parts = ["<h1>Reading notes</h1>", "<p>I am reading the language reference from end to end. What struck me:</p>"]
    for topic in catalogue.topics():
        whole = unescape(TAG.sub("", BLOCK_END.sub("\n\n", topic_article(topic))))
        parts.append(f"<h2>On {escape(topic)}</h2>\n{SemanticDoc().markdown(whole[:QUOTED], 3)}")
    return "\n".join(parts)


def damage(article: str) -> str:
    """Typographic punctuation in UTF-8, read by mistake as Windows-1252: the mojibake that ftfy undoes."""
    typeset = re.sub(r"(?<=\w)&#x27;(?=\w)", "’", article).replace(" -- ", " — ").replace("...", "…")
    typeset = re.sub(r"(?<=[\w,.;]) (?=(?:that|which|and|but) )", " – ", typeset, count=40)
    return typeset.encode("utf-8").decode("cp1252")
