"""The n-gram index against a plain twin."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decontaminate.kernel import letters
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
def test_matches_equal_those_of_the_plain_twin(texts: list[str], text: str, shortest: int, more: int) -> None:
    index = NgramIndex(texts, longest=shortest + more, shortest=shortest)
    matches = index.matches(text)
    found = {(match.start, match.length): index.sources(match.gram) for match in matches}
    assert found == plain_matches(texts, text, shortest + more, shortest)
    assert matches == sorted(set(matches))
    assert index.ignored == sum(len(words_of(t)) < shortest for t in texts)


@given(st.text(min_size=1) | TEXTS, st.text(), st.text())
def test_a_text_is_found_whatever_its_letters_and_what_is_around_it(text: str, before: str, behind: str) -> None:
    found = NgramIndex([text], longest=3, shortest=2).matches(f"{before} {text} {behind}")
    assert bool(found) == (len(words_of(text)) >= 2)


@given(st.text(max_size=3), st.text(max_size=3))
def test_equal_in_lower_case_is_equal_to_the_kernel(one: str, other: str) -> None:
    same = words_of(f"a {one}") == words_of(f"a {other}") and len(words_of(one)) == 1
    if same:
        assert NgramIndex([f"a {one}"], 2, 2).matches(f"a {other}")


def test_every_letter_in_both_cases() -> None:
    """The kernel must pass whatever is equal in lower case, or a passage would stay unseen."""
    table = letters()
    for code in range(0x20000):
        letter = chr(code)
        assert (table[code] > 0) == bool(re.match(r"\w", letter)), hex(code)
        for case in (letter.upper(), letter.lower()):
            if len(case) == 1 and case.lower() == letter.lower():
                assert table[ord(case)] == table[code], hex(code)


@given(st.text() | TEXTS)
def test_words_and_spans_agree(text: str) -> None:
    assert words_of(text) == [text[start:end].lower() for start, end in word_spans(text)]


def test_equal_hashes_do_not_make_a_match() -> None:
    texts = ["one two three four", "five six seven eight"]
    index = NgramIndex(texts, longest=2, shortest=2)
    words = words_of("two three one two six five six eight seven eight")
    numbers = np.array([index._vocabulary[word] for word in words], dtype=np.uint32)
    index._keys[:] = 7  # as if every window had the same hash
    places = np.arange(len(words) - 1)
    found = {match.start for match in index._compared(numbers, np.full(len(places), 7, dtype=np.uint64), places)}
    known = {tuple(words_of(t)[i : i + 2]) for t in texts for i in range(3)}
    assert found == {start for start in places.tolist() if tuple(words[start : start + 2]) in known} != set()
