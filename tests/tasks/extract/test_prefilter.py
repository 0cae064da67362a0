"""Before the extraction: the prefilter's clear cases, and bounds on the markup of a page."""

import hashlib
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from benchmarks.gold_pages import documentation_pages, gold_pages
from gpt2train.data.tokenizer import load_tokenizer
from tasks.clean.repair import repair
from tasks.clean.settings import CleanSettings
from tasks.clean.step import check_text
from tasks.download.warc import Page
from tasks.extract.complexity import MAX_ATTRIBUTES, MAX_ELEMENTS, cut_attributes
from tasks.extract.decode import decode
from tasks.extract.page import extract_page, extract_pages
from tasks.extract.prefilter import (
    SAMPLE_MARKUP,
    PrefilterRules,
    max_tokens,
    plain_text,
    prefilter_reason,
    samples,
    visible_markup,
)
from tasks.extract.settings import ExtractOptions, ExtractResult, ExtractSettings

WANTED = PrefilterRules(min_tokens=128, languages=("en",), share=ExtractSettings().prefilter_min_prob)
ENGLISH = "The committee met in the old library and spoke at length about the roof, the rent and the hours. "
GERMAN = "Der Ausschuss traf sich in der alten Bücherei und sprach lange über das Dach und die Miete. "
JAPANESE = "委員会は古い図書館で会合を開き、屋根と家賃と開館時間について長い間話し合った。"


def html(*texts: str) -> str:
    return "<html><body>" + "".join(f"<p>{text}</p>" for text in texts) + "</body></html>"


def reason(page: str, wanted: PrefilterRules = WANTED) -> str | None:
    found = prefilter_reason(page, wanted)
    return found and found[0]


def test_short_pages_are_dropped() -> None:
    assert reason(html("A few words.")) == "early_short"
    assert prefilter_reason(html("A few words."), WANTED) == (
        "early_short",
        "at most 7 tokens on the whole page, at least 128 expected",
    )
    assert reason(html(ENGLISH * 8)) is None
    assert reason(html("A few words."), PrefilterRules(min_tokens=0, languages=("en",), share=0.1)) is None
    # Text of scripts does not count, but trafilatura may take the page's text out of a JSON-LD script.
    assert reason(f"<script>{ENGLISH * 99}</script>" + html("few")) == "early_short"
    assert reason(f'<script type="application/ld+json">{{"articleBody": "{ENGLISH * 9}"}}</script>' + html("x")) is None


def test_pages_in_other_languages_are_dropped() -> None:
    assert prefilter_reason(html(GERMAN * 40), WANTED) == ("early_language", "found de, expected en")
    assert reason(html(JAPANESE * 40)) == "early_language"
    assert reason(html(ENGLISH * 40)) is None
    assert reason(html(GERMAN * 40), PrefilterRules(min_tokens=128, languages=("en", "de"), share=0.1)) is None
    assert reason(html(GERMAN * 40), PrefilterRules(min_tokens=128, languages=("any",), share=0.1)) is None
    assert reason(html("1 2 3 " * 200)) is None  # no letters to detect a language by


@pytest.mark.parametrize("position", range(0, 40, 3))
@pytest.mark.parametrize("padding", ["", "<span class='a-long-class-name' data-x='1234567890'></span>" * 3])
def test_english_within_another_language_is_found_at_any_position(position: int, padding: str) -> None:
    texts = [GERMAN * 3] * 40
    texts[position : position + 6] = [ENGLISH * 3] * 6  # a seventh of the page
    assert reason(html(*(padding + text for text in texts))) is None


def test_visible_markup_takes_linear_time() -> None:
    page = f"a<!-- b --> c<SCRIPT x>d<p></Script>e<style>f</style>g<scripted>h<script>{'<script>' * 100_000}"
    assert plain_text(visible_markup(page)) == "a c e g h"
    assert plain_text(visible_markup("<" * 300_000)) != ""


@given(st.text(st.characters(codec="utf-8"), max_size=3000) | st.text("<>!-/scripty le&;a ", max_size=300))
def test_samples_of_any_text_are_within_bounds(text: str) -> None:
    markup = visible_markup(text)
    for sample in [*samples(markup, None), *samples(markup, plain_text(markup))]:
        assert 100 <= len(sample) <= 400 <= SAMPLE_MARKUP
    prefilter_reason(text, WANTED)


def test_the_bound_on_tokens_is_never_too_low(real_data: Path) -> None:
    tokenizer = load_tokenizer(real_data / "bpe")
    texts = [plain_text(visible_markup(decode(page.body)[0]))[:2000] for page in gold_pages(real_data, every=6)]
    texts += [GERMAN * 4, JAPANESE * 4, "🙂🙃" * 50, "x = [a[i] for i in range(10)]\n" * 9]
    for text, encoded in zip(texts, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        assert len(encoded.ids) <= max_tokens(text)


def kept_and_dropped(data: Path, every: int, bodies: list[bytes]) -> tuple[int, int, list[int]]:
    """Number of pages that cleaning keeps, number that the prefilter drops, and the pages in both groups."""
    bodies = [page.body for page in gold_pages(data, every=every)] + bodies
    tokenizer = load_tokenizer(data / "bpe")
    kept, dropped, false = 0, 0, []
    for number, body in enumerate(bodies):
        page = Page("http://a.example/", "http://a.example/", "text/html", None, body, "2026-01-01", "", "list")
        text = repair(extract_page(page, ExtractOptions()).text)
        keep = check_text(text, len(tokenizer.encode(text).ids), CleanSettings())[1] is None
        drop = extract_page(page, ExtractOptions(wanted=WANTED)).reason in ("early_short", "early_language")
        kept, dropped = kept + keep, dropped + drop
        false += [number] * (keep and drop)
    return kept, dropped, false


def test_nothing_that_cleaning_keeps_is_dropped_on_a_sample(real_data: Path) -> None:
    kept, dropped, false = kept_and_dropped(real_data, 11, [])
    assert (kept > 10, dropped > 5, false) == (True, True, [])


@pytest.mark.exhaustive
def test_at_most_one_in_a_thousand_that_cleaning_keeps_is_dropped(real_data: Path) -> None:
    bodies = [body for number, (_, body) in enumerate(documentation_pages(real_data)) if number % 6 == 0]
    kept, dropped, false = kept_and_dropped(real_data, 1, bodies)
    assert dropped > 130
    assert len(false) <= 0.001 * kept, false


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
    "commented parts": "".join(
        f"<div class=s{n}><p>A text of some words {n}.</p><div class=comments>x</div></div>" for n in range(30_000)
    ),
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
    assert time.process_time() - begun < 30  # of `extract.deadline`; 3.4 at most on a machine with two cores
    assert found.reason in (None, "no_text")


def test_attributes_of_ordinary_pages_are_below_the_bound() -> None:
    html = f"<p{attributes(MAX_ATTRIBUTES)}>x</p>"
    assert cut_attributes(html) is html
