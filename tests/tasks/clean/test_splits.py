"""Splits by the hash of the text."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.settings import build
from tasks.clean.splits import SplitSettings, split_of

SHARES = st.tuples(st.floats(0, 0.5), st.floats(0, 0.49))


@given(st.text(), st.integers(0, 2**63 - 1), SHARES)
def test_the_split_is_a_function_of_text_and_seed(text: str, seed: int, shares: tuple[float, float]) -> None:
    settings = SplitSettings(seed=seed, valid=shares[0], test=shares[1])
    split = split_of(text, settings)
    assert split == split_of(text, settings.model_copy())
    assert split in ("train", "valid", "test")
    assert shares[0] > 0 or split != "valid"
    assert shares[1] > 0 or split != "test"


@given(st.text(), st.floats(0, 0.9), st.floats(0, 0.9))
def test_a_larger_test_share_only_adds_documents(text: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    if split_of(text, SplitSettings(valid=0, test=small)) == "test":
        assert split_of(text, SplitSettings(valid=0, test=large)) == "test"


def test_shares_are_met_and_depend_on_the_seed() -> None:
    texts = [f"document {n}" for n in range(20_000)]
    counts = Counter(split_of(text, SplitSettings()) for text in texts)
    assert counts["test"] == pytest.approx(1000, abs=120)  # 4 standard deviations
    assert counts["valid"] == pytest.approx(1000, abs=120)
    both = sum(split_of(text, SplitSettings()) == split_of(text, SplitSettings(seed=1)) == "test" for text in texts)
    assert both == pytest.approx(50, abs=30)


def test_known_texts_keep_their_split() -> None:
    # Frozen: a change here would move documents of finished runs between the splits.
    splits = [split_of(f"document {n}", SplitSettings()) for n in (9, 10, 41)]
    assert splits == ["train", "valid", "test"]


def test_shares_that_leave_no_training_data_are_refused() -> None:
    with pytest.raises(UserError, match="leave no documents to train on"):
        build(SplitSettings, {"valid": 0.5, "test": 0.5})
