"""The n-gram index against a reference implementation."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decontaminate.folding import IDEOGRAPH, IGNORED, LETTER, folded, letters
from tasks.decontaminate.ngrams import NgramIndex, word_spans, words_of

# Few words, so that n-grams meet; İ grows when lower-cased, ß and Σ change.
WORDS = st.sampled_from(["a", "b", "A", "c", "İ", "ß", "ΣΑΣ", "_x", "12"])
GAPS = st.sampled_from([" ", "  ", ", ", ".\n", "-"])
TEXTS = st.lists(st.tuples(WORDS, GAPS), max_size=30).map(lambda parts: "".join(w + g for w, g in parts))


def plain_matches(texts: Sequence[str], text: str, longest: int, shortest: int) -> dict[tuple[int, int], list[int]]:
    """(first word, words) of every n-gram and the texts of the set that hold it, by comparing everything."""
    found: dict[tuple[int, int], list[int]] = {}
    words = words_of(text)
    for number, other in enumerate(texts):
        known = words_of(other)
        length = min(len(known), longest)
        if len(known) < shortest:
            continue
        for place in range(len(known) - length + 1):
            for start in range(len(words) - length + 1):
                if words[start : start + length] == known[place : place + length]:
                    holders = found.setdefault((start, length), [])
                    holders += [number] if number not in holders else []
    return found


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile before any test is timed."""
    NgramIndex(["one two"], 2, 2)


@given(st.lists(TEXTS, max_size=6), TEXTS, st.integers(1, 4), st.integers(0, 4))
def test_matches_equal_the_reference_implementation(texts: list[str], text: str, shortest: int, more: int) -> None:
    index = NgramIndex(texts, ngram=shortest + more, min_ngram=shortest)
    matches = index.matches(text)
    found = {(match.start, match.length): index.sources(match.gram) for match in matches}
    assert found == plain_matches(texts, text, shortest + more, shortest)
    assert matches == sorted(set(matches))
    assert index.ignored == sum(len(words_of(t)) < shortest for t in texts)


@given(st.text(min_size=1) | TEXTS, st.text(), st.text())
def test_any_text_is_found_in_any_context(text: str, before: str, behind: str) -> None:
    found = NgramIndex([text], ngram=3, min_ngram=2).matches(f"{before} {text} {behind}")
    assert bool(found) == (len(words_of(text)) >= 2)


@given(st.text(max_size=3), st.text(max_size=3))
def test_texts_equal_in_lower_case_match_in_the_kernel(one: str, other: str) -> None:
    same = words_of(f"a {one}") == words_of(f"a {other}") and len(words_of(one)) == 1
    if same:
        assert NgramIndex([f"a {one}"], 2, 2).matches(f"a {other}")


LETTERS = "".join(chr(code) for code, kind in enumerate(letters().kinds.tolist()) if kind >= LETTER)
SINGLES = "".join(filter(IDEOGRAPH.fullmatch, LETTERS))
PASSED = "".join(chr(code) for code, kind in enumerate(letters().kinds.tolist()) if kind == IGNORED)
LETTER_RE = f"(?:(?![{SINGLES}])[{re.escape(LETTERS)}])"
LINE_END = r"[-\u2010\xad][ \t\r]*\n[ \t\r]*(?!\n)"
INSIDE = f"(?:[{re.escape(PASSED)}]|{LINE_END})*"
TWIN = re.compile(rf"\[(?:[0-9][0-9 ,-]{{0,10}}|[a-z])\]|([{SINGLES}]|{LETTER_RE}(?:{INSIDE}{LETTER_RE})*){INSIDE}")
PARTS = ["har", "b", "\u00ad", "\u200b", "-", "-\n", "- \r\n ", "\n", " ", "[3]", "[", "12", ", ", "]", "[a]", "_"]
ODD_PARTS = ["中", "の", "а", "𝐡", "ﬁ", "²", "\u0301", "İ", "ß", "\u02bc", "\ufe0f", "\ud800"]
PIECES = st.lists(st.sampled_from(PARTS + ODD_PARTS) | st.characters(exclude_categories=())).map("".join)


@pytest.mark.parametrize(
    ("latin", "alike"), [("ABEZHIKMNOPTYX", "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ"), ("ABESIJKMHOPCTYXQWY", "АВЕЅІЈКМНОРСТУХԚԜҮ")]
)
def test_capitals_that_look_alike_are_folded(latin: str, alike: str) -> None:
    assert [folded(letter) for letter in alike] == list(latin.lower())


def test_every_letter_is_folded_alike_in_both_cases() -> None:
    """The kernel must pass whatever is equal when folded, or a passage would stay unseen.

    Greek eta, nu and upsilon look like h, n and y in capitals, but like n, v and u in small letters.
    """
    kinds = letters().kinds
    for code in [*range(0xD800), *range(0xF900, 0x20000), *range(0xE0000, 0xE0200)]:
        letter = chr(code)
        word = bool(re.match(r"\w", letter)) and bool(folded(letter))
        assert (kinds[code] >= LETTER) == word, hex(code)
        for case in (letter.upper(), letter.lower()):
            other_in_capitals = unicodedata.normalize("NFKD", letter)[0] in "ΗηΝνΥυ"
            if word and len(case) == 1 and case.lower() == letter.lower() and not other_in_capitals:
                assert folded(case) == folded(letter), hex(code)


@given(st.text() | TEXTS | PIECES)
def test_words_equal_the_reference_implementation(text: str) -> None:
    assert word_spans(text) == [found.span(1) for found in TWIN.finditer(text) if found[1]]
    assert len(words_of(text)) == len(word_spans(text))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("harbour at night", "HARBOUR At nigHT"),
        ("harbour at night", "har\u00adbour at\u200b ni\u2060ght"),
        ("harbour at night", "har-\nbour at ni\u00ad\r\n  ght"),
        ("harbour at night", "_harbour_ at __night__"),
        ("harbour at night", "harbour[3] at night[12, 14][a]"),
        ("harbour at night", "harbour² at¹⁰ night"),
        ("harbour at night", "𝐡𝐚𝐫𝐛𝐨𝐮𝐫 𝒂𝒕 ｎｉｇｈｔ"),
        ("harbour at night", "hаrbоur аt nіght"),
        ("harbour at night", "hαrbοur αt nιght"),
        ("THE NEW HOUSE OF KEYS", "ΤΗΕ ΝΕW ΗΟUSΕ ΟF ΚΕΥS"),
        ("THE NEW HOUSE OF KEYS", "ТНЕ NЕW НОUЅЕ ОF КЕҮЅ"),
        ("harbour at night", "ʜᴀʀʙᴏᴜʀ ᴀᴛ ɴɪɢʜᴛ"),
        ("Το νησί του Αιγαίου", "Το νησι\u0301 του Αιγαι\u0301ου"),
        ("Старая гавань спит", "СТАРАЯ ГАВАНЬ СПИТ"),
        ("the fish don't", "the ﬁsh don\u02bct"),
        ("naïve café", "naive cafe"),
        ("naïve café", "nai\u0308ve cafe\u0301"),
        ("Вода и Хлеб", "ВОДА И ХЛЕБ"),
        ("ΣΑΣ", "σας"),
        ("人人生而自由", "人人，生而自由。"),
    ],
)
def test_texts_that_read_the_same_match(one: str, other: str) -> None:
    assert words_of(one) == words_of(other)
    assert NgramIndex([one], 2, 1).matches(other)


def test_brackets_that_are_no_reference_marks_are_read() -> None:
    words = "x he said 1999 2001 500 y well known a b"
    assert words_of("x [he] said [1999-2001-500] y[2] well-known a-b") == words.split(" ")


def test_equal_hashes_alone_are_no_match() -> None:
    texts = ["one two three four", "five six seven eight"]
    index = NgramIndex(texts, ngram=2, min_ngram=2)
    text = "two three one two six five six eight seven eight"
    words = words_of(text)
    index._keys[:] = 7  # as if every window had the same hash
    places = np.arange(len(words) - 1)
    found = {match.start for match in index._verify(text, np.full(len(places), 7, dtype=np.uint64), places)}
    known = {tuple(words_of(t)[i : i + 2]) for t in texts for i in range(3)}
    assert found == {start for start in places.tolist() if tuple(words[start : start + 2]) in known} != set()
