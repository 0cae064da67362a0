"""Length of a run by epochs, on any batches, and a position embedding that is larger than the samples."""

import bisect
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.config import CONFIG_FILE, RampUp, TrainSettings, read_run_config, resolve_epochs
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.convert.hf_config import read_shape
from gpt2train.convert.merge import merge
from gpt2train.data.samples import samples_per_epoch
from gpt2train.data.training_data import training_data
from gpt2train.errors import UserError
from gpt2train.parallel.mesh import DistContext
from gpt2train.runs.reading_order import ReadingOrder
from gpt2train.settings import build
from gpt2train.train import train
from gpt2train.training.lr_schedule import learning_rate, make_schedule
from gpt2train.training.train_state import START, StepStats, TrainState
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.jobs import VOCAB, curve, make, weights

CONTEXT = 8
LEARNED = StepStats(loss=1.0, grad_norm=1.0, stop=False)


@st.composite
def starts(draw: st.DrawFn) -> list[tuple[BatchPlan, int]]:
    """Starts of a run with batches of their own, as of other processes or accumulation, and the steps of each."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        unit = draw(st.integers(1, 4)) * draw(st.integers(1, 3))  # micro-batch x processes
        first, parts = unit * draw(st.integers(1, 3)), draw(st.integers(0, 3))
        ramp = RampUp(start=first, increment=unit, samples=draw(st.integers(1, 120)))
        found.append((BatchPlan(first + parts * unit, ramp if parts else None), draw(st.integers(0, 12))))
    return found


@settings(max_examples=60, deadline=None)
@given(starts(), st.integers(20, 90), st.floats(0.3, 3.0), st.sampled_from(["tokens", "epochs", "fraction"]), st.data())
def test_passes_rates_and_last_step_hold_on_any_batches(
    runs: list[tuple[BatchPlan, int]], per_epoch: int, epochs: float, unit: str, data: st.DataObject
) -> None:
    wanted, part = math.ceil(epochs * per_epoch), data.draw(st.floats(0.01, 0.2))
    warmup = {"tokens": int(part * wanted) * CONTEXT, "epochs": part * epochs, "fraction": part}[unit]
    given_ = {"epochs": epochs, "model": {"context": CONTEXT}, "schedule": {"warmup": 0, f"warmup_{unit}": warmup}}
    config = build(TrainSettings, given_)
    state, used = START, [0]  # samples after each step
    for number, (plan, steps) in enumerate(runs):
        # The rest of the run by counting: each step takes what the plan says of its first sample.
        counted = used[:]
        while counted[-1] < 2 * wanted:
            counted.append(counted[-1] + plan.size_at(counted[-1]))
        last = max(1, bisect.bisect_left(counted, wanted))
        rise = {
            "tokens": bisect.bisect_left(counted, math.ceil(warmup / CONTEXT)),
            "epochs": bisect.bisect_left(counted, math.ceil(warmup * per_epoch)),
            "fraction": round(warmup * last),
        }[unit]
        if rise >= last:
            return
        for _ in range(steps if number < len(runs) - 1 else last):
            batches = plan.after(state.done)  # as after a kill in each step
            resolved = resolve_epochs(config, per_epoch, batches)
            schedule = make_schedule(resolved, batches, per_epoch)
            assert (resolved.steps, schedule.warmup) == (last, rise)
            assert batches.samples_after(last) == counted[last]
            if state.step == last:
                break
            peak, floor, update = config.optimizer.lr, config.schedule.min_lr, state.updates
            done = 0.5 * (1 - math.cos(math.pi * (update - rise) / max(1, last - 1 - rise)))
            rate = peak * (update + 1) / (rise + 1) if update < rise else peak + (floor - peak) * done
            assert learning_rate(update, schedule) == pytest.approx(rate)
            state = TrainState.model_validate_json(state.model_dump_json())
            state = state.advance(LEARNED, batches.size_at(state.samples), config)
            used.append(state.samples)
            assert counted[state.step] == state.samples and bool(state.batches) == (len(set(state.done)) > 1)
    assert used[-1] >= wanted > used[-2]  # all passes, and no step more


@pytest.mark.slow
@pytest.mark.parametrize("batch", [4, 16])
def test_a_run_of_epochs_that_resumes_with_another_batch_fills_its_passes(
    tokens: Path, tmp_path: Path, alone: DistContext, batch: int
) -> None:
    schedule = {"warmup": 0}
    config = make(tokens, tmp_path / "run", steps=10, schedule=schedule)
    train(config, alone)
    per_epoch = samples_per_epoch(config)
    assert per_epoch == training_data(config).per_epoch
    wanted = math.ceil(1.5 * per_epoch)
    changes = {"epochs": 1.5, "batch": {"global_batch": batch}, "schedule": schedule}
    state = train(make(tokens, tmp_path / "run", **changes), alone)
    assert state.step == 10 + -(-(wanted - 80) // batch) and state.batches == ((10, 8), (state.step - 10, batch))
    assert curve(config.output, "lr")[-1] == pytest.approx(1e-3 if state.step > 10 else 1e-2)
    written = read_run_config(Path(config.output) / CONFIG_FILE)
    assert written.steps == state.step
    read = [79, 80, 80 + batch - 1, 80 + batch]
    assert ReadingOrder(Path(config.output), written).steps(read) == [9, 10, 11]
    # Finished, with whatever batch; but not for fewer passes than are done.
    assert train(make(tokens, tmp_path / "run", epochs=1.5, schedule=schedule), alone) == state
    with pytest.raises(UserError, match=r"is at step \d+ \(1.5\d epochs\), beyond epochs = 0.5; raise epochs or"):
        train(make(tokens, tmp_path / "run", epochs=0.5, schedule=schedule), alone)


def test_epochs_too_few_for_the_warmup_are_refused(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    with pytest.raises(UserError, match=r"schedule.warmup 3 steps must be below steps 1; lower it or train longer"):
        train(make(tokens, tmp_path / "run", epochs=0.01), alone)


def test_samples_may_be_shorter_than_the_position_embedding(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    changes = {"schedule": {"warmup": 0}, "optimizer": {"weight_decay": 0.0}}
    train(make(tokens, tmp_path / "whole", steps=1, **changes), alone)
    start = {"init_from": str(tmp_path / "whole"), "restore": "weights"}
    short = {"model": {"context": 8, "max_positions": 16}, "checkpoints": start, **changes}
    for steps in (1, 2):  # the second resumes the first
        assert train(make(tokens, tmp_path / "run", steps=steps, **short), alone).step == steps
    assert curve(tmp_path / "run", "tokens") == [8 * 8, 2 * 8 * 8]
    rows, before = (weights(tmp_path / name)["wpe.weight"] for name in ("run", "whole"))
    assert rows.shape == (16, 32) and torch.equal(rows[8:], before[8:]) and not torch.equal(rows[:8], before[:8])
    merge(tmp_path / "run", tmp_path / "model", write_tokenizer(tmp_path / "tokenizer", VOCAB))
    assert read_shape(tmp_path / "model").context == 16
