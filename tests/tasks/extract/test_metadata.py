"""Metadata of pages: title, language, date."""

import pytest
from lxml.html import document_fromstring

from tasks.extract.metadata import language_hint, page_title, stated_date


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
    assert (
        stated_date(document_fromstring(f"<html><head>{tags}</head><body>x</body></html>"), "2026-01-01T00:00:00Z")
        == day
    )
