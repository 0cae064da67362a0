"""Samples of corpora: epochs, mixtures, document masks by Megatron's rule, counted targets, prefetching."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt2train.config import DocumentSettings, RampUp
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.data import epoch as module
from gpt2train.data.batch import Batch, prefetch
from gpt2train.data.epoch import Epoch, permutation, samples_in
from gpt2train.data.mixture import MAX_PERIOD, Mixture, interleave, shares
from gpt2train.data.samples import Samples
from gpt2train.data.training_data import TrainingData, positions_within
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import document_mask
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE
from tests.gpt2train.indexed_writer import write_documents

END = 99
ALL = DocumentSettings(reset_positions=True, mask_documents=True, eod_mask_loss=True)
NONE = DocumentSettings()
# Lengths without the end token, so that a document may be nothing but that token.
CORPUS = st.lists(st.integers(0, 20), min_size=4, max_size=15).filter(lambda lengths: sum(lengths) > 10)


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {"tokens": batch.tokens, "targets": batch.targets, **batch.extra}


def corpus(folder: Path, lengths: Sequence[int], context: int, first: int = 0, seed: int | None = 5) -> Samples:
    """Documents that end with END, of tokens below it."""
    folder.mkdir(exist_ok=True)
    documents = [
        [*((number + place) % END for place in range(length)), END] for number, length in enumerate(lengths, first)
    ]
    return Samples(write_documents(folder / "t", documents), context, END + 1, seed)


def megatron_marks(tokens: list[int]) -> tuple[list[list[bool]], list[int], list[bool]]:
    """Megatron-LM's `get_ltor_masks_and_position_ids` with all three flags, for one sample, written as a loop."""
    length = len(tokens)
    mask = [[k <= q for k in range(length)] for q in range(length)]
    positions, counts, previous = list(range(length)), [token != END for token in tokens], 0
    for place, token in enumerate(tokens):
        if token == END:
            for q in range(place + 1, length):
                for k in range(place + 1):
                    mask[q][k] = False
                positions[q] -= place + 1 - previous
            previous = place + 1
    return mask, positions, counts


@settings(max_examples=40)
@given(CORPUS, st.integers(2, 12), st.lists(st.integers(0, 90), min_size=1, max_size=6))
def test_masks_and_positions_equal_megatrons(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    samples = corpus(tmp_path_factory.mktemp("b") / "c", lengths, context)
    data = TrainingData([samples], [1.0], ALL)
    batch, plain = data.batch(wanted), samples.read(wanted)[0]
    masks = document_mask(batch.extra["documents"])
    for row in range(len(wanted)):
        mask, positions, counts = megatron_marks(plain[row, :-1].tolist())
        assert batch.tokens[row].tolist() == plain[row, :-1].tolist()
        assert masks[row, 0].tolist() == mask
        assert batch.extra["positions"][row].tolist() == positions
        expected = [token if counted else IGNORE for token, counted in zip(plain[row, 1:], counts, strict=True)]
        assert batch.targets[row].tolist() == expected
    assert data.counted(wanted) == max(1, int((batch.targets != IGNORE).sum()))


def test_nothing_is_masked_by_default_as_in_the_paper(tmp_path: Path) -> None:
    data = TrainingData([corpus(tmp_path / "c", [5, 9, 3], 4)], [1.0], NONE)
    batch = data.batch(range(6))
    assert batch.extra == {} and (batch.targets != IGNORE).all()
    assert (batch.tokens[:, 1:] == batch.targets[:, :-1]).all()
    assert data.counted(range(6)) == 24


@settings(max_examples=25)
@given(st.tuples(CORPUS, CORPUS), st.tuples(*[st.integers(1, 5)] * 2), st.integers(0, 400), st.integers(1, 60))
def test_a_global_batch_does_not_depend_on_its_division(
    tmp_path_factory: pytest.TempPathFactory, lengths: tuple, weights: tuple[int, int], start: int, size: int
) -> None:
    # Corpora of a few samples: a batch of sixty crosses several epochs of both.
    folder, indices = tmp_path_factory.mktemp("b"), range(start, start + size)
    corpora = [corpus(folder / str(first), part, 4, first) for first, part in zip((0, 50), lengths, strict=True)]
    data = TrainingData(corpora, weights, ALL)
    whole = data.batch(indices)
    pieces = [TrainingData(corpora, weights, ALL).batch([index]) for index in indices]  # a restart before each sample
    assert set(whole.extra) == {"positions", "documents"}
    for name in ("tokens", "targets", *whole.extra):
        assert torch.equal(tensors(whole)[name], torch.cat([tensors(piece)[name] for piece in pieces]))
    assert data.counted(indices) == max(1, int((whole.targets != IGNORE).sum()))
    for index, row in zip(indices, whole.targets, strict=True):
        assert data.counted([index]) == max(1, int((row != IGNORE).sum()))


def test_each_corpus_has_its_own_epochs(tmp_path: Path) -> None:
    parts = [corpus(tmp_path / "one", [30] * 4, 4), corpus(tmp_path / "two", [6] * 3, 4, first=50)]
    data = TrainingData(parts, [1, 1], NONE)
    rounds = 3 * parts[1].per_epoch
    batch = data.batch(range(2 * rounds)).tokens.numpy()
    # Every other sample is from the small corpus, which is read three times, in a new order each time.
    assert np.array_equal(batch[0::2], parts[0].read(range(rounds))[0][:, :-1])
    assert np.array_equal(batch[1::2], parts[1].read(range(rounds))[0][:, :-1])
    assert data.epochs(2 * rounds) == [
        (str(tmp_path / "one" / "t"), 124, rounds / parts[0].per_epoch),
        (str(tmp_path / "two" / "t"), 21, 3.0),
    ]
    assert data.per_epoch == 2 * parts[1].per_epoch


def test_samples_beyond_a_fixed_set_have_no_targets(tmp_path: Path) -> None:
    data = TrainingData([corpus(tmp_path / "c", [30] * 4, 4, seed=None)], [1.0], NONE)
    batch = data.batch(range(2, 6), until=4)
    assert (batch.targets[:2] != IGNORE).all() and (batch.targets[2:] == IGNORE).all()
    assert torch.equal(batch.tokens[3], batch.tokens[1])
    assert torch.equal(batch.tokens[:2], data.batch([2, 3]).tokens)


def test_a_token_outside_the_vocabulary_names_its_corpus(tmp_path: Path) -> None:
    good, bad = corpus(tmp_path / "one", [30] * 4, 4), corpus(tmp_path / "two", [30] * 4, 4)
    bad.vocab = 50
    with pytest.raises(UserError, match=r"two/t\.bin contains the token id 99"):
        TrainingData([good, bad], [1, 1], NONE).check()


SHAPE = Shape(vocab=100, layers=2, heads=2, hidden=32, context=24)
LENGTHS = [[7, 1, 16], [24, 0, 0]]  # of the documents in each of two samples


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(SHAPE.vocab, (2, SHAPE.context), generator=generator)
    documents = [torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)) for lengths in LENGTHS]
    return tokens, torch.stack(documents)


def test_masked_documents_with_their_own_positions_are_as_if_alone() -> None:
    model, (tokens, documents) = initialise(GPT2(SHAPE), seed=3), sample()
    positions = torch.from_numpy(positions_within(documents.numpy()))
    together = model(tokens, positions=positions, documents=documents)
    for row in range(2):
        for number in range(3):
            here = documents[row] == number
            if here.any():
                alone = model(tokens[row : row + 1, here])[0]
                assert torch.allclose(together[row, here], alone, atol=1e-5)
    assert not torch.allclose(together[0, 8:], model(tokens)[0, 8:], atol=1e-2)  # without the mask it is another text


ANY_LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 8)


def epoch_of(lengths: list[int], context: int, seed: int | None, number: int) -> Epoch:
    return Epoch.build(np.cumsum([0, *lengths]), context, seed, number)


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 9))
def test_a_permutation_is_complete_and_depends_on_the_seed(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed, epoch, 0)
    assert sorted(order.tolist()) == list(range(count))
    assert (order == permutation(count, seed, epoch, 0)).all()
    assert count < 20 or (order != permutation(count, seed, epoch, 1)).any()
    assert permutation(8, 1234, 0, 0).tolist() == [1, 6, 2, 0, 3, 5, 7, 4]  # in each version


@given(st.integers(0, 200), st.integers(1, 20))
@example(463_508, 1024)  # tokens of Megatron-LM's tutorial, whose log has 452 samples an epoch
@example(463_511, 1024)
def test_samples_are_counted_as_in_an_explicit_stream(tokens: int, context: int) -> None:
    """Of Megatron-LM's rule: a sample needs `context` tokens and one more."""
    assert samples_in(tokens, context) == sum(start + context < tokens for start in range(0, tokens, context))
    assert tokens < 463_508 or samples_in(tokens, context) == 452


@given(ANY_LENGTHS, st.integers(1, 8), st.integers(0, 99), st.integers(0, 3))
def test_each_token_of_an_epoch_is_a_target_once_but_the_tail(
    lengths: list[int], context: int, seed: int, number: int
) -> None:
    epoch = epoch_of(lengths, context, seed, number)
    places, numbers = epoch.locate(np.arange(len(epoch.order)))
    targets = places[:, 1:].ravel().tolist()
    total, count = sum(lengths), samples_in(sum(lengths), context)
    assert places.shape == (count, context + 1)
    assert len(set(targets)) == len(targets) == count * context
    assert set(targets) <= set(range(total)) and total - 1 - len(targets) < context
    # In stream order neighbours share one token, and documents stay whole: a plain loop finds the same stream.
    starts = np.cumsum([0, *lengths])
    documents = permutation(len(lengths), seed, number, 0)
    stream = [place for d in documents for place in range(starts[d], starts[d + 1])]
    for row, slot in zip(places.tolist(), epoch.order.tolist(), strict=True):
        assert row == stream[slot * context : slot * context + context + 1]
    holders = np.searchsorted(starts, places, side="right")
    assert ((np.diff(holders) != 0) == (np.diff(numbers) != 0)).all()


def test_epochs_are_shuffled_anew_and_only_with_a_seed() -> None:
    first, second = (epoch_of([10] * 30, 4, 7, number) for number in (0, 1))
    assert (first.locate(np.arange(70))[0] != second.locate(np.arange(70))[0]).any()
    places = epoch_of([5, 0, 7], 3, None, 0).locate(np.arange(3))[0]
    assert places.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_equal_sort_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Philox:
        def __init__(self, _: object) -> None: ...

        def random_raw(self, count: int) -> np.ndarray:
            return np.arange(count, dtype=np.uint64) % 3

    monkeypatch.setattr(module.np.random, "Philox", Philox)
    assert permutation(600, 1).tolist() == sorted(range(600), key=lambda n: n % 3)


def test_files_that_no_sample_can_come_from_are_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "t", [[1, 2, 3, 99], [4] * 20])
    samples = Samples(prefix, 4, 99, seed=0)
    samples.check_vocabulary(1, 2)  # the second half of the file is fine
    with pytest.raises(UserError, match=r"t\.bin contains the token id 99, but the vocabulary has 99"):
        samples.check_vocabulary(0, 2)
    with pytest.raises(UserError, match="another tokenizer"):
        samples.read(range(samples.per_epoch))
    with pytest.raises(UserError, match="holds 24 tokens, fewer than one sample of 25"):
        Samples(prefix, 24, 100, seed=0)


@settings(max_examples=25)
@given(ANY_LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_document_numbers_change_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    # Every token is the number of its document, so that the tokens show where documents change.
    numbered = [[number] * length for number, length in enumerate(lengths)]
    samples = Samples(write_documents(tmp_path_factory.mktemp("s") / "t", numbered), context, 100, seed=3)
    tokens, documents = samples.read(wanted)
    assert ((np.diff(tokens) != 0) == (np.diff(documents) != 0)).all() and (np.diff(documents) >= 0).all()
    assert samples.document_ends(wanted) == int((np.diff(documents) != 0).sum())


COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=8)
WEIGHTS = st.lists(st.integers(1, 999).map(lambda n: n / 100), min_size=1, max_size=5)


@given(COUNTS)
def test_every_prefix_is_within_one_sample_of_the_shares(counts: list[int]) -> None:
    order, whole = interleave(counts), sum(counts)
    drawn = np.cumsum(order[:, None] == np.arange(len(counts)), axis=0)
    wanted = np.arange(1, whole + 1)[:, None] * np.array(counts)  # times `whole`, to stay in integers
    assert drawn[-1].tolist() == counts
    assert np.abs(drawn * whole - wanted).max() < whole


def test_equal_shares_alternate_and_a_single_corpus_is_unchanged() -> None:
    assert interleave([1, 1]).tolist() == [0, 1]
    assert interleave([7, 2, 1]).tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0, 2]
    corpora, mine = Mixture([0.37]).of(range(5))
    assert corpora.tolist() == [0] * 5 and mine.tolist() == [0, 1, 2, 3, 4]
    # Shares are exact as written, and positions at large indices.
    assert shares([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert shares([3, 1]) == shares([0.75, 0.25]) == [3, 1]
    assert shares([5.0]) == [1]
    n = 10**12
    corpora, mine = Mixture([2, 1]).of([3 * n, 3 * n + 1, 3 * n + 2])
    assert sorted(zip(corpora.tolist(), mine.tolist(), strict=True)) == [(0, 2 * n), (0, 2 * n + 1), (1, n)]
    assert Mixture([9, 2]).per_epoch([99, 99]) == 121


@given(st.lists(st.floats(1e-7, 1e7), min_size=2, max_size=9))
def test_any_weights_give_a_period_of_bounded_length(weights: list[float]) -> None:
    counts, whole = shares(weights), sum(map(Fraction, weights))
    assert sum(counts) <= MAX_PERIOD and min(counts) >= 1
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - float(Fraction(weight) / whole)) < len(weights) / MAX_PERIOD


@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 3000))
def test_each_corpus_is_read_in_its_own_order(weights: list[float], length: int) -> None:
    mixture = Mixture(weights)
    corpora, mine = mixture.of(range(length))
    seen: Counter[int] = Counter()
    for corpus, index in zip(corpora.tolist(), mine.tolist(), strict=True):  # counted one by one
        assert index == seen[corpus]
        seen[corpus] += 1
    # An index means the same sample, whatever indices are requested before or with it.
    some = np.random.default_rng(length).integers(0, length, 20)
    assert (mixture.of(some)[0] == corpora[some]).all() and (mixture.of(some)[1] == mine[some]).all()
    for number, share in enumerate(mixture.shares):
        assert abs(seen[number] - share * length) < 1 + 1e-6


@given(st.lists(st.tuples(st.integers(1, 58), st.integers(1, 400)), min_size=1, max_size=4))
def test_an_epoch_ends_before_the_first_corpus_repeats(corpora: list[tuple[int, int]]) -> None:
    draws, samples = [draws for draws, _ in corpora], [count for _, count in corpora]
    mixture = Mixture(draws)
    epoch = mixture.per_epoch(samples)
    assert epoch == int(min(Fraction(count * sum(draws), drawn) for drawn, count in corpora))
    for number, count in enumerate(samples):
        assert mixture.drawn(number, epoch) <= count


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    prefix = write_documents(tmp_path / "t", [[number] * 9 for number in range(80)])
    choices = DocumentSettings(reset_positions=True, mask_documents=True)
    return TrainingData([Samples(prefix, 4, 100, seed=1)], [1.0], choices)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def counting(asked: list[int], failing: int | None = None) -> Iterator[int]:
    for number in range(10):
        if number == failing:
            raise UserError("no such sample")
        asked.append(number)
        yield number


@pytest.mark.parametrize("ahead", [0, 1, 2, 30])
def test_items_come_in_order_and_the_thread_ends(ahead: int) -> None:
    with prefetch(counting([]), ahead) as items:
        assert list(items) == list(range(10))
    assert threads() == []


def test_prefetching_stays_within_its_depth() -> None:
    asked: list[int] = []
    with prefetch(counting(asked), 3) as items:
        assert [next(items), next(items)] == [0, 1]
    assert asked in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]) and threads() == []
    seen = []  # an error is raised at the position of its item, and any in the loop ends the thread
    with pytest.raises(UserError, match="no such sample"), prefetch(counting([], failing=4), 3) as items:
        for item in items:
            seen.append(item)
    assert seen == [0, 1, 2, 3] and threads() == []
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), prefetch(counting([]), 2) as items:
            next(items)
            raise error
        assert threads() == []


def test_the_ranks_of_a_step_share_its_samples(data: TrainingData) -> None:
    whole = data.batch(range(100, 124))
    plan = BatchPlan(24, None)
    steps = [next(data.training_batches(plan, 100, 1, micro=3, rank=rank, ranks=4)) for rank in range(4)]
    parts = [step.micro_batches for step in steps]
    in_order = [parts[rank][turn] for turn in range(2) for rank in range(4)]
    assert set(whole.extra) == {"positions", "documents"}
    for name in ("tokens", "targets", *whole.extra):
        assert torch.equal(tensors(whole)[name], torch.cat([tensors(batch)[name] for batch in in_order]))


def test_the_steps_of_a_growing_batch_follow_each_other(data: TrainingData) -> None:
    plan = BatchPlan(8, RampUp(start=4, increment=4, samples=8))
    ranks = [list(data.training_batches(plan, 4, 3, micro=2, rank=rank, ranks=2)) for rank in range(2)]
    in_order = []
    for step, (samples, turns) in zip(zip(*ranks, strict=True), ((4, 1), (8, 2), (8, 2)), strict=True):
        for batch in step:
            assert (batch.samples, len(batch.micro_batches), batch.targets) == (samples, turns, 4 * samples)
        in_order += [batch.micro_batches[turn].tokens for turn in range(turns) for batch in step]
    assert torch.equal(data.batch(range(4, 24)).tokens, torch.cat(in_order))
