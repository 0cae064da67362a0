"""Packed samples: each token once, as a function of the sample index."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.samples import Samples
from gpt2train.errors import UserError
from tests.gpt2train.indexed_writer import IndexedWriter

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 8)


def write(prefix: Path, documents: list[list[int]]) -> Path:
    with IndexedWriter(prefix, "<u2") as writer:
        for document in documents:
            writer.add(document)
    return prefix


@settings(max_examples=25)
@given(LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_a_batch_equals_its_samples_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    counter = iter(range(10_000))
    prefix = write(tmp_path_factory.mktemp("s") / "t", [[next(counter) for _ in range(n)] for n in lengths])
    batch = Samples(prefix, context, 10_000, seed=3).read(wanted)[0]
    # A fresh loader per index, as after a restart: the index alone decides.
    alone = [Samples(prefix, context, 10_000, seed=3).read([index])[0][0] for index in wanted]
    assert batch.dtype == np.int64 and (batch == np.stack(alone)).all()


def test_a_token_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    prefix = write(tmp_path / "t", [[1, 2, 3, 99], [4] * 20])
    samples = Samples(prefix, 4, 99, seed=0)
    samples.check_vocabulary(1, 2)  # the second half of the file is fine
    with pytest.raises(UserError, match=r"t\.bin contains the token id 99, but the vocabulary has 99"):
        samples.check_vocabulary(0, 2)
    with pytest.raises(UserError, match="another tokenizer"):
        samples.read(range(samples.per_epoch))[0]


def test_too_few_tokens_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds 3 tokens, fewer than one sample of 9"):
        Samples(write(tmp_path / "t", [[1, 2, 3]]), 8, 10, seed=0)


@settings(max_examples=25)
@given(LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_document_numbers_change_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    # Every token is the number of its document, so that the tokens show where documents change.
    prefix = write(tmp_path_factory.mktemp("s") / "t", [[number] * length for number, length in enumerate(lengths)])
    samples = Samples(prefix, context, 100, seed=3)
    tokens, documents = samples.read(wanted)
    assert ((np.diff(tokens) != 0) == (np.diff(documents) != 0)).all() and (np.diff(documents) >= 0).all()
    assert samples.document_ends(wanted) == int((np.diff(documents) != 0).sum())
