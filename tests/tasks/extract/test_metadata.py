"""Metadata of pages: title, language, date."""

import dataclasses

import pytest
from lxml.html import document_fromstring

from benchmarks.extract import as_page
from tasks.extract.metadata import language_hint, page_title, publication_day, stated_days
from tasks.extract.page import extract_page
from tasks.extract.settings import ExtractOptions
from tests.tasks.extract.made_pages import PARAGRAPH


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title> A  title\n</title>", "<h1>Heading</h1>", "A title"),
        ("<title></title><meta property='og:title' content='Shared as'>", "", "Shared as"),
        ("", "<h1>Heading <em>in two</em></h1>", "Heading in two"),
        ("", "<p>text</p>", None),
        (f"<title>{'long ' * 200}</title>", "", ("long " * 100).rstrip() + " "),
    ],
)
def test_titles_are_found(head: str, body: str, title: str | None) -> None:
    tree = document_fromstring(f"<html><head>{head}</head><body>{body}</body></html>")
    assert page_title(tree) == title


@pytest.mark.parametrize(
    ("page", "header", "language"),
    [
        ("<html lang='en-US'><body>x", None, "en"),
        ("<html lang='DE'><body>x", "en", "de"),
        ("<html xml:lang='pt_BR'><body>x", None, "pt"),
        ("<html><head><meta http-equiv='Content-Language' content='fr, en'></head><body>x", None, "fr"),
        ("<html><head><meta property='og:locale' content='es_ES'></head><body>x", None, "es"),
        ("<html lang=''><body>x", "ja", "ja"),
        ("<html lang='haw'><body>x", None, "haw"),
        ("<html lang='english'><body>x", None, None),
        ("<html lang='{{ lang }}'><body>x", None, None),
        ("<html><body>x", None, None),
    ],
)
def test_languages_are_found(page: str, header: str | None, language: str | None) -> None:
    assert language_hint(document_fromstring(page), header) == language


@pytest.mark.parametrize(
    ("tags", "day"),
    [
        ("<meta property='article:published_time' content='2019-03-04T05:06:07Z'>", "2019-03-04"),
        ("<meta name='DC.date' content='20190304'>", "2019-03-04"),
        ("<time itemprop='datePublished' datetime='2019-03-04'>March</time>", "2019-03-04"),
        ("<meta name='date' content='2018-01-01'><meta itemprop='datePublished' content='2019-03-04'>", "2019-03-04"),
        ("<meta name='date' content='2019-02-30'>", None),
        ("<meta name='date' content='2031-01-01'>", None),  # after the fetch
        ("<meta name='date' content='yesterday'>", None),
        ("<time datetime='2019-03-04'>a day in the story</time>", None),
    ],
)
def test_dates_are_found(tags: str, day: str | None) -> None:
    stated = stated_days(document_fromstring(f"<html><head>{tags}</head><body>x</body></html>"))
    assert publication_day(stated, "2026-01-01") == day
    assert publication_day(stated[:1], "") == (stated[0] if stated else None)


def test_without_a_fetch_day_the_earliest_stated_day_is_taken() -> None:
    """A file has no day of its fetch, and a stated day may be in the future."""
    tags = "<meta property='article:published_time' content='2031-05-05'><meta name='date' content='2019-03-02'>"
    page = as_page("http://a.test/", f"<html><head>{tags}</head><body>{PARAGRAPH}</body></html>".encode())
    found = extract_page(dataclasses.replace(page, fetched_at=""), ExtractOptions())
    assert found.date == "2019-03-02" and found.by_fetch_day
    assert extract_page(page, ExtractOptions()).date == "2019-03-02"
