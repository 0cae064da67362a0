"""Bounds on the markup of a page, and CPU time in proportion to its size."""

import hashlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from tasks.download.warc import Page
from tasks.extract.complexity import MAX_ATTRIBUTES, MAX_ELEMENTS, cut_attributes
from tasks.extract.page import extract_pages
from tasks.extract.settings import ExtractOptions, ExtractResult

PROSE = "<p>The river runs through the old valley and the people of the town walk along it every evening.</p>" * 20
PIECES = ["<p", "<script", "</script>", "<!--", "-->", "<style>", ">", " a=1", " b='>'", ' c=">"', " d", "/", "=", " "]
PIECES += ["'", '"', "<", "x", "\n", "</p>", " e = f", " g='", ' h="']


def extract(html: str) -> ExtractResult:
    body = html.encode()
    url = "http://a.example/"
    digest = hashlib.sha256(body).hexdigest()
    page = Page(url, url, "text/html", None, body, "2026-01-01T00:00:00Z", digest, "list")
    return extract_pages([page], ExtractOptions())[0]


def attributes(count: int) -> str:
    return "".join(f" a{n}='>{n}'" for n in range(count))


def test_attributes_beyond_the_bound_are_cut() -> None:
    html = f"<html{attributes(9)}><body{attributes(2)}><p class=x{attributes(9)}>text</p><br{attributes(9)} /></body>"
    tree = document_fromstring(cut_attributes(html, 5))
    assert [len(element.attrib) for element in tree.iter()] == [5, 2, 5, 5]
    assert tree.find(".//p").get("class") == "x"
    assert tree.text_content() == "text"


def test_text_that_is_no_tag_is_not_cut() -> None:
    words = " w" * 2000
    for html in (
        f"<!-- <p{words}> --><p>x</p>",
        f"<script>if (a<b{words}) x()</script><p>x</p>",
        f"<style>a<b{words}</style><p>x</p>",
        f"<p title='{words}>{words}'>x</p>",
        f"<p>1 < 2{words}</p>",
        f"</p{words}><p>x</p>",
        PROSE,
    ):
        assert cut_attributes(html, 5) is html


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.integers(1, 4))
@example(["<p", " a=1", " g='", " a=1"], 1)
@example(["<p", " d", " b='>'", "</p>"], 1)
def test_no_element_keeps_more_attributes_than_the_bound(pieces: list[str], most: int) -> None:
    html = "<html><body>" + "".join(pieces)
    cut = cut_attributes(html, most)
    assert cut_attributes(html, len(html)) is html
    assert cut_attributes(cut, most) == cut


IN_A_TAG = [piece for piece in PIECES if "<" not in piece and piece != ">"]


@given(st.lists(st.lists(st.sampled_from(IN_A_TAG), max_size=9), max_size=9), st.integers(1, 4))
@example([[" e = f", " d", "/"]], 1)
def test_only_attributes_beyond_the_bound_are_cut(tags: list[list[str]], most: int) -> None:
    html = "<html><body>" + "".join("<p" + "".join([" ", *tag]) + ">x" for tag in tags)
    cut = cut_attributes(html, most)
    whole, bounded = document_fromstring(html), document_fromstring(cut)
    assert [element.tag for element in whole.iter()] == [element.tag for element in bounded.iter()]
    assert whole.text_content() == bounded.text_content()
    for before, after in zip(whole.iter("*"), bounded.iter("*"), strict=True):
        assert before.items()[: len(after.items())] == after.items()


def test_a_page_of_too_many_elements_is_rejected() -> None:
    found = extract(PROSE + "<i></i>" * MAX_ELEMENTS)
    assert (found.reason, found.text) == ("too_many_elements", "")
    assert found.detail.endswith("at most 100,000 expected")
    assert extract(PROSE + "<i></i>" * (MAX_ELEMENTS - 100)).reason is None


HEAVY = {
    "attributes": f"<p{attributes(30_000)}>x</p>{PROSE}",
    "attributes of the root": f"<html{attributes(30_000)}><body{attributes(30_000)}>{PROSE}",
    "attributes of a script": f"<script{attributes(30_000)}></script>{PROSE}",
    "paragraphs": PROSE + "<p>x</p>" * 30_000,
    "links": PROSE + '<a href="/x">text</a> ' * 15_000,
    "spans": f"{PROSE}<p>{'<span>words </span>' * 30_000}</p>",
    "list items": f"{PROSE}<ul>{'<li>item</li>' * 15_000}</ul>",
    "hidden items": f"{PROSE}<div>{'<p hidden>item</p>' * 30_000}</div>",
    "nested hidden parts": PROSE + "".join(f"<div hidden id=a{n}>" for n in range(1500)) + "<p>x y z</p>" * 9000,
    "nested parts of scripts": "".join(
        f"<a onclick=\"open('a{n}')\">x</a>{PROSE if n == 0 else ''}<div hidden id=a{n}><p>x y z</p>"
        for n in range(900)
    ),
    "nested navigations": "<nav><p>A text of some words, as long as it is.</p>" * 900,
    "nested recipes": PROSE + "<div class=recipe>" * 1500 + "<li>100 g flour</li>" * 9000,
    "asides": PROSE + "".join(f"<aside><p>{'A text of some words. ' * 5}{n}.</p></aside>" for n in range(9000)),
    "nested": f"{'<div>' * 100_000}{PROSE}",
    "unclosed quotes": "<p a='" * 30_000 + '<p a="' * 30_000 + PROSE,
    "unclosed comments": "<!--" * 100_000 + PROSE,
    "unclosed scripts": "<script " * 100_000 + PROSE,
    "spaces in a tag": f"<p {' ' * 1_000_000}{PROSE}",
    "slashes in a tag": f"<p {'/' * 1_000_000}{PROSE}",
}


@pytest.mark.parametrize("kind", HEAVY)
def test_adversarial_pages_take_little_cpu_time(kind: str) -> None:
    """Before the bounds: 28 CPU s for the attributes on a slow machine."""
    begun = time.process_time()
    found = extract(HEAVY[kind])
    assert time.process_time() - begun < 15
    assert found.reason in (None, "no_text")


def test_attributes_of_ordinary_pages_are_below_the_bound() -> None:
    html = f"<p{attributes(MAX_ATTRIBUTES)}>x</p>"
    assert cut_attributes(html) is html
