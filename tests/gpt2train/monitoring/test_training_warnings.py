"""Warnings of a training: before the first step, and on overfitting."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import RunConfig
from gpt2train.monitoring.run_logger import overfitting_warning, warn_before_start
from gpt2train.settings import build

GIVEN = {"vocab": 300, "output": "o", "data": {"train": "t"}, "steps": 100, "schedule": {"warmup": 9}}
CONFIG = build(RunConfig, GIVEN)


def rows(train: list[float], valid: list[float | None]) -> list[dict[str, Any]]:
    """One row a step; a validation after every second one."""
    found: list[dict[str, Any]] = []
    for i, (loss, held_out) in enumerate(zip(train, valid, strict=True)):
        found += [{"step": 2 * i + 1, "loss": loss}, {"step": 2 * i + 2, "loss": loss, "valid_loss": held_out}]
    return found


def test_doubtful_settings_are_warned_of_before_the_first_step() -> None:
    assert warn_before_start(CONFIG, 9, [("books", 3.9)]) == []
    assert warn_before_start(CONFIG, 50, []) == []
    (warmup,) = warn_before_start(CONFIG, 51, [])
    assert warmup == "the warm-up takes 51 of 100 steps; schedule.warmup is usually below a tenth"
    (epochs,) = warn_before_start(CONFIG, 9, [("books", 4.1), ("news", 1.0)])
    assert epochs.startswith("4.1 epochs of books")


def test_overfitting_is_warned_of_after_two_rises() -> None:
    falling = [5.0, 4.0, 3.0, 2.5]
    warning = overfitting_warning(rows(falling, [5.1, 4.2, 4.3, 4.4]))
    assert warning is not None
    assert "risen 2 times in a row (4.2000 to 4.4000)" in warning and "step 4 (4.2000)" in warning
    assert overfitting_warning(rows(falling[:3], [5.1, 4.2, 4.3])) is None  # one rise is noise
    assert overfitting_warning(rows(falling, [5.1, 4.2, 4.1, 4.4])) is None
    assert overfitting_warning(rows([5.0, 4.0, 4.1, 4.2], [5.1, 4.2, 4.3, 4.4])) is None  # both rise: something else
    assert overfitting_warning([]) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_a_falling_validation_loss_gives_no_warning(losses: list[float]) -> None:
    ordered: list[float | None] = [*sorted(losses, reverse=True)]
    assert overfitting_warning(rows(losses, ordered)) is None
