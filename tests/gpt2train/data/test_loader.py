"""Prefetching: the same batches in the same order, errors at their position, no thread left."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpt2train.config import DocumentSettings, RampUp
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.data.batch import prefetch
from gpt2train.data.samples import Samples
from gpt2train.data.training_data import TrainingData
from gpt2train.errors import UserError
from tests.gpt2train.data.test_corpora import tensors
from tests.gpt2train.data.token_files import write_documents


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


def test_an_error_is_raised_at_the_position_of_its_item() -> None:
    seen = []
    with pytest.raises(UserError, match="no such sample"), prefetch(counting([], failing=4), 3) as items:
        for item in items:
            seen.append(item)
    assert seen == [0, 1, 2, 3] and threads() == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_any_exception_in_the_loop_ends_the_thread(error: type[BaseException]) -> None:
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
