"""Packed samples: each token once, as a function of the sample index."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.samples import Samples
from gpt2train.errors import UserError
from tests.gpt2train.data.token_files import write_documents

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) > 8)


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
@given(LENGTHS, st.integers(1, 6), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_document_numbers_change_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], context: int, wanted: list[int]
) -> None:
    # Every token is the number of its document, so that the tokens show where documents change.
    numbered = [[number] * length for number, length in enumerate(lengths)]
    samples = Samples(write_documents(tmp_path_factory.mktemp("s") / "t", numbered), context, 100, seed=3)
    tokens, documents = samples.read(wanted)
    assert ((np.diff(tokens) != 0) == (np.diff(documents) != 0)).all() and (np.diff(documents) >= 0).all()
    assert samples.document_ends(wanted) == int((np.diff(documents) != 0).sum())
