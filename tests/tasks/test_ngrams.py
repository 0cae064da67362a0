"""The n-gram index against a plain twin."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tasks.ngrams import NgramIndex, word_spans, words_of

# Few words, so that n-grams meet; İ grows when lower-cased, ß and Σ change.
WORDS = st.sampled_from(["a", "b", "A", "c", "İ", "ß", "ΣΑΣ", "_x", "12"])
GAPS = st.sampled_from([" ", "  ", ", ", ".\n", "-"])
TEXTS = st.lists(st.tuples(WORDS, GAPS), max_size=30).map(lambda parts: "".join(w + g for w, g in parts))


def plain_matches(texts: Sequence[str], text: str, longest: int, shortest: int) -> set[tuple[int, int, int]]:
    """(first word, words, text of the set) of every n-gram, by comparing everything with everything."""
    found = set()
    words = words_of(text)
    for number, other in enumerate(texts):
        known = words_of(other)
        length = min(len(known), longest)
        if len(known) < shortest:
            continue
        for place in range(len(known) - length + 1):
            for start in range(len(words) - length + 1):
                if words[start : start + length] == known[place : place + length]:
                    found.add((start, length, number))
    return found


@given(st.lists(TEXTS, max_size=6), TEXTS, st.integers(1, 4), st.integers(0, 4))
def test_matches_equal_those_of_the_plain_twin(texts: list[str], text: str, shortest: int, more: int) -> None:
    index = NgramIndex(texts, longest=shortest + more, shortest=shortest)
    matches = index.matches(text)
    found = {(match.start, match.length, source) for match in matches for source in index.sources[match.gram]}
    assert found == plain_matches(texts, text, shortest + more, shortest)
    assert matches == sorted(set(matches))
    assert index.ignored == sum(len(words_of(t)) < shortest for t in texts)


@given(st.text() | TEXTS)
def test_words_and_spans_agree(text: str) -> None:
    assert words_of(text) == [text[start:end].lower() for start, end in word_spans(text)]


def test_equal_hashes_do_not_make_a_match() -> None:
    index = NgramIndex(["one two three four", "five six seven eight"], longest=2, shortest=2)
    table = index._tables[2]
    table.hashes[:] = table.hashes[0]  # as if every n-gram had the same hash
    known = {tuple(words_of(t)[i : i + 2]) for t in ("one two three four", "five six seven eight") for i in range(3)}
    text = "two three one two six five six eight seven eight"
    words = words_of(text)
    first = {m.start for m in index.matches(text)}
    assert first
    assert all(tuple(words[start : start + 2]) in known for start in first)
