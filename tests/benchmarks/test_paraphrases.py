"""Pairs and texts of the benchmark of paraphrases."""

import random

from benchmarks.paraphrases import ALIKE, DIFFERENT, Editor, overlap, rule_accuracy

WORDS = [f"word{number}" for number in range(200)]
DOCUMENTS = [[" ".join(random.Random(n * 9 + m).sample(WORDS, 12)) for m in range(4)] for n in range(40)]


def editor(seed: int = 1) -> Editor:
    return Editor((sentence for document in DOCUMENTS for sentence in document), seed)


def test_a_seed_gives_the_same_edits() -> None:
    one, again, other = (editor(seed).with_copies(DOCUMENTS[0]) for seed in (1, 1, 2))
    assert one == again != other
    assert [line for line in one.split("\n") if line in DOCUMENTS[0]][:1] == DOCUMENTS[0][:1]


def test_the_strength_of_an_edit_is_the_share_of_lost_words() -> None:
    chosen, sentence = editor(), " ".join(WORDS[:32])
    lost = [len(set(sentence.split()) - set(chosen.edited(sentence, 0.3).split())) / 32 for _ in range(200)]
    assert 0.27 < sum(lost) / len(lost) < 0.33
    assert sorted(chosen.edited(sentence, 0.0).split()) == sorted(sentence.split())


def test_pairs_are_labelled_by_their_overlap() -> None:
    pairs = editor().overlaps(DOCUMENTS, 60)
    assert len(pairs) == 60 and sum(same for same, _, _ in pairs) == 30
    assert all(overlap(a, b) >= ALIKE if same else overlap(a, b) < DIFFERENT for same, a, b in pairs)
    copies = editor().copies(DOCUMENTS, 100)
    scores = [overlap(a, b) for same, a, b in copies if same]
    assert 0.6 < sum(scores) / len(scores) < 0.9
    assert all([a, b] in [d[i : i + 2] for d in DOCUMENTS for i in range(3)] for same, a, b in copies if not same)


def test_the_rule_takes_its_threshold_from_the_training_rows() -> None:
    rows = [(1, "a b c d", "a b c e"), (0, "a b c d", "a f g h")]
    assert rule_accuracy(rows, rows) == 1.0
    assert rule_accuracy(rows, [(0, "a b c d", "a b c d")]) == 0.0
