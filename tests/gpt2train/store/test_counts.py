"""Numbers with a noun."""

import pytest

from gpt2train.store.counts import count_of
from gpt2train.store.progress import StageProgress


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "page", "1 page"),
        (0, "page", "0 pages"),
        (2000, "training document", "2,000 training documents"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
        (2, "batch", "2 batches"),
        (3, "process", "3 processes"),
        (2, "corpus", "2 corpora"),
        (1, "GPU", "1 GPU"),
    ],
)
def test_one_is_in_the_singular(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


def test_progress_of_one_row() -> None:
    assert ", 1 page, " in StageProgress("page", 2, done=1, rows=1, started=0.0).summary(10.0)
