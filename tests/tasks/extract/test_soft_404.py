"""Detection of soft 404s, parked domains and placeholders, without false positives on content."""

from pathlib import Path

import pytest
from lxml.html import document_fromstring

from benchmarks.gold_pages import documentation_pages, gold_pages
from tasks.download.warc import Page
from tasks.extract.metadata import page_title
from tasks.extract.page import extract_page
from tasks.extract.settings import ExtractOptions
from tasks.extract.soft_404 import MAX_CHARACTERS, detect_soft_404, page_marks

PROSE = "The committee met in the old library and spoke at length about the roof, the rent and the reading hours. "


def flagged(title: str, body: str, text: str) -> str | None:
    tree = document_fromstring(f"<html><head><title>{title}</title></head><body>{body}</body></html>")
    found = detect_soft_404(page_marks(tree, page_title(tree)), text)
    return found and found[0]


@pytest.mark.parametrize(
    "line",
    [
        "404",
        "404 Not Found",
        "Error 404 (Not Found)!!1",
        "HTTP 404 - Page not found",
        "Page not found | The Daily Example",
        "Example.org – Page Not Found",
        "Oops! That page can’t be found.",
        "Sorry, the page you requested could not be found",
        "The requested URL was not found",
        "This page doesn't exist",
        "Article no longer available",
        "We couldn't find that page",
        "Seite nicht gefunden - Beispiel",
        "Page introuvable",
        "Página no encontrada",
        "Страница не найдена",
        "ページが見つかりません",
    ],
)
def test_soft_404s_are_detected(line: str) -> None:
    assert flagged(line, "<p>Try the search.</p>", "Try the search.") == "soft_404"
    assert flagged("Example", f"<h1>{line}</h1>", "Try the search.") == "soft_404"
    assert flagged(line, "", PROSE * 20) is None  # an article of this name


@pytest.mark.parametrize(
    "text",
    [
        "This domain is for sale. Make an offer.",
        "The domain example.com is for sale",
        "The domain name example.com may be for sale by its owner!",
        "Buy this domain today",
        "example.com is parked free, courtesy of a registrar",
        "This domain has recently been registered.",
        "This domain name has expired.",
        "Diese Domain steht zum Verkauf",
        "Ce nom de domaine est à vendre",
    ],
)
def test_parked_and_reregistered_domains_are_detected(text: str) -> None:
    assert flagged("example.com", f"<p>{text}</p>", text) == "parked"
    assert flagged("example.com", f"<p>{text}</p>", f"{text} {PROSE * 8}") is None  # quoted in a longer text


def test_pages_of_parking_providers_are_detected() -> None:
    frame = '<iframe src="https://www.sedoparking.com/frmpark/example.com"></iframe>'
    assert flagged("example.com", frame, "Related links") == "parked"
    assert flagged("example.com", '<a href="https://sedoparking.com/">a provider</a>', "Related links") is None
    assert flagged("example.com", '<script src="https://cdn.example/x.js"></script>', "Related links") is None
    assert flagged("example.com", '<script src="//[broken/x.js"></script>', "Related links") is None


@pytest.mark.parametrize(
    "title",
    [
        "Welcome to nginx!",
        "Apache2 Ubuntu Default Page: It works",
        "Test Page for the Apache HTTP Server on Fedora",
        "IIS Windows Server",
        "Account Suspended",
        "This site has been temporarily suspended",
        "Coming soon",
    ],
)
def test_placeholders_are_detected(title: str) -> None:
    assert flagged(title, "<p>If you see this page, the server works.</p>", "If you see this page …") == "placeholder"
    assert flagged(title, "", PROSE * 20) is None


@pytest.mark.parametrize(
    "title",
    [
        "Why the book was not found in the library",
        "How to handle 404 errors in your application",
        "404 days in the desert",
        "The missing page",
        "The page that changed history",
        "Buying and selling domain names",
        "A welcome to the new members",
        "The coming soon of the kingdom",
        "File formats",
        "Not Found: a novel",
    ],
)
def test_titles_of_content_are_not_flagged(title: str) -> None:
    if title != "Not Found: a novel":  # a part of it is what a missing page calls itself: only the length differs
        assert flagged(title, f"<h1>{title}</h1>", PROSE) is None
    assert flagged(title, f"<h1>{title}</h1>", PROSE * (MAX_CHARACTERS // len(PROSE) + 1)) is None


def test_the_detection_can_be_switched_off() -> None:
    body = f"<html><head><title>404 Not Found</title></head><body><p>{PROSE * 3}</p></body></html>".encode()
    page = Page("http://a.example/", "http://a.example/", "text/html", None, body, "2026-01-01T00:00:00Z", "", "list")
    found = extract_page(page, ExtractOptions())
    assert (found.reason, found.text) == ("soft_404", "")
    assert found.detail.startswith("the page calls itself '404 Not Found' in 3")
    assert extract_page(page, ExtractOptions(detect_soft_404=False)).text.startswith("The committee met")


def flags_of(data: Path, every: int, limit: int | None) -> list[str | None]:
    """Why real pages would be dropped; None for those that stay."""
    bodies = [page.body for page in gold_pages(data, every=every)]
    bodies += [body for _, body in documentation_pages(data, limit=limit)]
    pages = [
        Page("http://a.example/", "http://a.example/", "text/html", None, b, "2026-01-01", "", "list") for b in bodies
    ]
    return [extract_page(page, ExtractOptions()).reason for page in pages]


def test_real_content_is_not_flagged_on_a_sample(real_data: Path) -> None:
    found = flags_of(real_data, every=30, limit=10)
    assert len(found) > 20
    assert set(found) <= {None, "no_text"}


@pytest.mark.exhaustive
def test_real_content_is_not_flagged(real_data: Path) -> None:
    found = flags_of(real_data, every=1, limit=600)
    assert len(found) > 900
    assert set(found) <= {None, "no_text", "undecodable"}  # a feed is among the gold pages
