"""Patched trafilatura against the original: the same elements for every XPath, the same text of every page."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import trafilatura
from hypothesis import given, settings
from hypothesis import strategies as st
from justext.core import revise_paragraph_classification
from justext.paragraph import Paragraph
from lxml import etree
from lxml.html import HtmlElement, document_fromstring
from trafilatura import core, main_extractor, utils, xpaths
from trafilatura.main_extractor import prune_unwanted_sections
from trafilatura.settings import Extractor
from trafilatura.utils import load_html

from benchmarks.gold_pages import documentation_pages, gold_pages
from tasks.core.document import strip_unstorable
from tasks.extract import justext_patches
from tasks.extract import trafilatura_patches as module
from tasks.extract.decode import decode
from tasks.extract.justext_patches import revise
from tasks.extract.trafilatura_patches import GROUPS, Parsed, apply_patches, clear_caches
from tasks.extract.xpath_groups import GroupedXPath

ARTICLE = "<p>It waits for the reply of the server, and gives up when none comes in time, as the manual says.</p>" * 9


def plain_text(html: str, **options: Any) -> str:
    text = trafilatura.extract(html, include_comments=False, **options)
    return strip_unstorable(text or "").strip()


def our_text(html: str, **options: Any) -> str:
    with apply_patches():
        tree = load_html(html)
        text = None if tree is None else trafilatura.extract(Parsed(tree), include_comments=False, **options)
    return strip_unstorable(text or "").strip()


@given(st.lists(st.tuples(st.sampled_from(["good", "bad", "short", "neargood"]), st.booleans())), st.booleans())
def test_paragraphs_are_classified_as_by_justext(classes: list[tuple[str, bool]], headings: bool) -> None:
    found = []
    for classify in (revise_paragraph_classification, revise):
        paragraphs = [Paragraph(justext_patches._Path("html.body.p")) for _ in classes]
        for paragraph, (own, heading) in zip(paragraphs, classes, strict=True):
            paragraph.cf_class, paragraph.heading = own, heading and headings
        classify(paragraphs, 150)
        found.append([paragraph.class_type for paragraph in paragraphs])
    assert found[0] == found[1]


class Checked(GroupedXPath):
    """A member that evaluates the original expression too."""

    asked = 0

    def __call__(self, tree: HtmlElement) -> list[HtmlElement]:
        found, plain = super().__call__(tree), list(self.group.plain[self.number](tree))
        assert found == (plain[:1] if self.group.first else plain)
        Checked.asked += 1
        return found


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare every expression with the original one, wherever trafilatura evaluates it."""
    members = {plain: Checked(*fast) for plain, fast in module.FAST.items()}
    monkeypatch.setattr(module, "FAST", members)
    Checked.asked = 0
    yield


@pytest.mark.usefixtures("checked")
def test_expressions_find_the_same_elements_on_real_pages(real_data: Path) -> None:
    check_expressions([one.body for one in gold_pages(real_data, every=19)])


@pytest.mark.usefixtures("checked")
def test_expressions_find_the_same_elements_on_documentation_pages(open_data: Path) -> None:
    check_expressions([body for _, body in documentation_pages(open_data)])


def check_expressions(bodies: list[bytes]) -> None:
    """Check that the texts equal those of unpatched trafilatura, and that expressions were compared meanwhile."""
    for body in bodies:
        html, _ = decode(body)
        assert our_text(html) == plain_text(html)
    assert Checked.asked > 8 * len(bodies)


TAGS = "article aside dd div footer h1 item li list main ol p section span style table template ul"
NAMES = "aria-hidden class data-component id itemprop role style"
VALUES = """
post entry articleBody article-content story main content main-content footer sidebar nav-menu teaser caption hidden
display:none comment-list comments cookie-notice cookie infinite-scroll reply-1 share tags true
"""


@st.composite
def trees(draw: st.DrawFn) -> HtmlElement:
    """Trees of the tags and attributes that the expressions test."""
    root = document_fromstring("<html><body></body></html>")
    places = [root[0]]
    for _ in range(draw(st.integers(0, 25))):
        element = etree.SubElement(draw(st.sampled_from(places)), draw(st.sampled_from(TAGS.split())))
        for name in draw(st.lists(st.sampled_from(NAMES.split()), max_size=3)):
            element.set(name, " ".join(draw(st.lists(st.sampled_from(VALUES.split()), min_size=1, max_size=2))))
        places.append(element)
    return root


@settings(max_examples=60, deadline=None)
@given(trees())
def test_expressions_find_the_same_elements_on_any_tree(tree: HtmlElement) -> None:
    for group in GROUPS:
        for member in group.members():
            plain = list(member.group.plain[member.number](tree))
            assert member(tree) == (plain[:1] if group.first else plain)


def test_removed_elements_are_not_found_again() -> None:
    tree = document_fromstring(
        "<div class=sidebar><p class=teaser>in it</p></div><p class=teaser>beside</p><p class=caption>x</p>"
    )
    first, _, caption, teaser = module.DISCARD.members()
    [sidebar] = first(tree)
    sidebar.drop_tree()
    assert [element.text for element in teaser(tree)] == ["beside"]
    assert [element.text for element in caption(tree)] == ["x"]


def test_invalid_attributes_are_left_to_the_original_expression() -> None:
    tree = document_fromstring("<div id='a&#1;'>x</div><div class=sidebar>y</div>")
    assert [element.text for element in module.DISCARD.members()[0](tree)] == ["y"]


def test_long_attributes_are_not_cached() -> None:
    clear_caches()
    tree = document_fromstring("".join(f"<div class='{'x' * 400}{n}'>a</div>" for n in range(50)))
    module.BODY.members()[0](tree)
    assert len(module.BODY.cache) == 0


@pytest.mark.parametrize("options", [{}, {"fast": True}, {"include_tables": False}])
def test_short_and_odd_pages_have_the_same_text(options: dict[str, Any]) -> None:
    bodies = [
        "",
        f"<article>{ARTICLE}</article>",
        f"<div class=content><p>short</p></div><div>{ARTICLE}</div>",
        f"{'<div>loose words in a row, ' * 40}",
        f"<table>{'<tr><td>one cell of many<td>and the next' * 30}</table><form>{ARTICLE}</form>",
        f"<nav>{'<a href=x>link</a> ' * 40}</nav><ul>{'<li><a href=y>item</a> words' * 40}</ul>",
        '<script type="application/ld+json">{"articleBody": "'
        f'{"told in a script, " * 40}"}}</script>',  # retired-word: ok
    ]
    pages = ["", "no markup", *(f"<html><body>{body}</body></html>" for body in bodies)]
    for html in pages:
        assert our_text(html, **options) == plain_text(html, **options)


TEXTS = ("", "x", "a few words here", "long words in a row, " * 8, "\n")


@st.composite
def linked(draw: st.DrawFn) -> HtmlElement:
    """Trees of the elements in which trafilatura measures link density."""
    root = document_fromstring("<html><body></body></html>")[0]
    places = [root]
    for _ in range(draw(st.integers(0, 25))):
        element = etree.SubElement(draw(st.sampled_from(places)), draw(st.sampled_from(["div", "list", "p", "ref"])))
        element.text, element.tail = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(TEXTS))
        if element.tag != "ref":
            places.append(element)
    return root


def pruned(tree: HtmlElement) -> tuple[HtmlElement, HtmlElement]:
    """A tree after pruning by the patch and by trafilatura."""
    plain = prune_unwanted_sections(deepcopy(tree), {"p"}, Extractor())
    with apply_patches():
        return main_extractor.prune_unwanted_sections(tree, {"p"}, Extractor()), plain


@settings(max_examples=100, deadline=None)
@given(linked())
def test_the_same_links_are_pruned(tree: HtmlElement) -> None:
    ours, plain = pruned(tree)
    assert etree.tostring(ours) == etree.tostring(plain)


@pytest.mark.parametrize(
    "inner",
    [
        "<list>a few plain words that stand in it<ref>ab</ref><ref>cd</ref><ref>ef</ref></list>",
        "<div>a few plain words that stand in it<ref>a longer link</ref><p>x</p><p>y</p></div>",
    ],
)
def test_parts_that_become_link_lists_are_pruned_too(inner: str) -> None:
    tree = document_fromstring(f"<body><div>{inner}<ref>another longer link</ref></div><p>text</p></body>")[0]
    ours, plain = pruned(tree)
    assert etree.tostring(ours) == etree.tostring(plain)
    assert [element.tag for element in ours] == ["p"]


LINES = st.sampled_from(["&nbsp;", "&#13;", "\u2424", "\x85", "\xa0", "\x01", "\n", "\r\n", " ", "word"])


@given(st.lists(LINES | st.text(max_size=3), max_size=12).map("".join))
def test_texts_are_cleaned_the_same_way(text: str) -> None:
    assert module._sanitize(text, True) == utils.sanitize(text, True)
    assert module._sanitize(text) == utils.sanitize(text)
    assert module._sanitize(text or "x", True, True) == utils.sanitize(text or "x", True, True)


def test_stop_words_are_those_of_the_given_language() -> None:
    stop_words = justext_patches.StopWords()
    for words in (("The", "a"), ("die",), ("The", "a")):
        assert stop_words.of(words) == frozenset(word.lower() for word in words)


def test_patches_can_be_nested() -> None:
    plain = core.load_html
    with apply_patches():
        with apply_patches():
            pass
        assert core.load_html is not plain
    assert core.load_html is plain


def test_patches_are_removed_even_after_an_error() -> None:
    before = [core.load_html, core._prepare_tree, core._extract_and_compare, list(xpaths.BODY_XPATH)]
    with pytest.raises(RecursionError), apply_patches():
        assert core.load_html is not before[0]
        raise RecursionError
    assert [core.load_html, core._prepare_tree, core._extract_and_compare, list(xpaths.BODY_XPATH)] == before
    assert type(load_html("<html><body><form><input></form></body></html>").find(".//form")).__name__ == "FormElement"
    assert utils.load_html is load_html
