"""Batches: document masks and positions by Megatron's rule; number of targets without reading tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.config import DocumentSettings
from gpt2train.data.batch import Batch
from gpt2train.data.samples import Samples
from gpt2train.data.training_data import TrainingData, positions_within
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import document_mask
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE
from tests.gpt2train.data.token_files import write_documents

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
