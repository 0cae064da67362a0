"""Groups of near-duplicates, and what a comparison does with them."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gpt2train.compare.documents import Corpus, draw_heldout, group_corpora
from gpt2train.compare.near_duplicates import near_duplicate_groups
from tests.gpt2train.compare.test_compare import reviews


def edited(text: str, number: int) -> str:
    """A copy with another word at the start and in the middle."""
    words = text.split()
    return " ".join([f"new{number}", *words[1:30], f"other{number}", *words[31:]])


def test_edited_copies_share_a_group_and_other_texts_do_not() -> None:
    """Each group is named by its first text, and the order of the texts decides nothing else."""
    texts = reviews(40, 0)
    copies = [edited(text, number) for number, text in enumerate(texts[:20])]
    found = near_duplicate_groups([*texts, *copies])
    assert found == [*range(40), *range(20)]
    order = list(range(60))
    random.Random(1).shuffle(order)
    shuffled = near_duplicate_groups([[*texts, *copies][index] for index in order])
    places = {index: place for place, index in enumerate(order)}
    assert all(shuffled[places[n]] == shuffled[places[40 + n]] for n in range(20))
    assert len(set(shuffled)) == 40


def test_texts_without_spaces_are_compared_by_characters() -> None:
    """Chinese characters in random order, and a copy with two others."""
    rng = random.Random(0)
    texts = ["".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(120)) for _ in range(10)]
    copies = [f"{text[:50]}一{text[51:]}二" for text in texts]
    assert near_duplicate_groups([*texts, *copies]) == [*range(10), *range(10)]


def test_lines_of_a_text_without_spaces_are_no_words() -> None:
    """Poems: short lines, in each of which a copy has another character."""
    rng = random.Random(0)
    poems = [["".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(15)) for _ in range(20)] for _ in range(10)]
    copies = ["\n".join([f"一{line[1:]}" if at % 3 == 0 else line for at, line in enumerate(poem)]) for poem in poems]
    assert near_duplicate_groups([*map("\n".join, poems), *copies]) == [*range(10), *range(10)]


@given(st.lists(st.text(min_size=1, max_size=60), max_size=12))
def test_any_texts_have_groups_named_by_their_first_text(texts: list[str]) -> None:
    found = near_duplicate_groups(texts)
    assert len(found) == len(texts)
    assert all(name <= index and found[name] == name for index, name in enumerate(found))
    assert all(found[i] == found[texts.index(text)] for i, text in enumerate(texts))


def test_near_duplicates_have_one_seed_and_leave_with_a_held_out_text() -> None:
    """Both corpora together: an edited copy in B of a text of A that is held out is not trained on."""
    texts = reviews(60, 0)
    near = {text: edited(text, number) for number, text in enumerate(texts[:30])}
    first, second = Corpus("A", dict.fromkeys(texts, 1)), Corpus("B", dict.fromkeys([*texts, *near.values()], 1))
    group_corpora([first, second])
    assert (first.near_duplicates, second.near_duplicates) == (0, 30)
    parts = [second.of_seed(seed, 3) for seed in range(3)]
    assert all((text in part) == (copy in part) for text, copy in near.items() for part in parts)
    for part in parts:
        places = {text: place for place, text in enumerate(part)}
        assert all(abs(places[text] - places[copy]) == 1 for text, copy in near.items() if text in places)
    assert all(set(first.of_seed(seed, 3)) <= set(parts[seed]) for seed in range(3))
    drawn = draw_heldout(second, first)
    held = {second.group(text) for text in drawn}
    assert len(held) == len(drawn) == 3
    assert held.isdisjoint(second.group(text) for corpus in (first, second) for text in corpus.copies)
