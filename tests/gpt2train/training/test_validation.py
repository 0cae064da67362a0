"""Validations, their values and samples, and what ends a run: such values, or epochs on any batches."""

import bisect
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import CONFIG_FILE, RampUp, RunConfig, TrainSettings, read_run_config, resolve_epochs
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.convert.hf_config import read_shape
from gpt2train.convert.merge import merge
from gpt2train.data.run_tokenizer import find_run_tokenizer
from gpt2train.data.samples import samples_per_epoch
from gpt2train.data.token_bytes import token_bytes
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.model.loss import IGNORE
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.samples import read_samples
from gpt2train.parallel.mesh import DistContext
from gpt2train.runs.reading_order import ReadingOrder
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from gpt2train.training.engine import Engine
from gpt2train.training.lr_schedule import learning_rate, make_schedule
from gpt2train.training.train_state import START, StepStats, TrainState
from gpt2train.training.validation import Measured
from tests.gpt2train.convert.model_folders import write_tokenizer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.indexed_writer import IndexedWriter
from tests.gpt2train.jobs import VOCAB, curve, make, weights, write

RANKS = Path(__file__).parent.parent / "parity" / "train_runs.py"
STEPS = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero3": {"zero": 3},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2},
}


def run(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    if not output.exists():
        output.mkdir()
        write_tokenizer(output / "tokenizer", VOCAB)
    base: dict[str, Any] = {
        "model": {"layers": 4, "dropout": 0.1},
        "steps": STEPS,
        "validation": {"interval": 2, "samples": 5, "sample": {"tokens": 6}},
    }
    return make(tokens, output, **(base | changes))


def test_bits_per_byte_are_those_of_the_bytes_of_the_targets(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = run(tokens, tmp_path / "run", documents={"eod_mask_loss": True})
    train(config, alone)
    found, data = find_run_tokenizer(config), packed_data(config, "valid")
    assert found is not None and data is not None
    targets = data.batch(range(5)).targets
    counted = targets[targets != IGNORE].tolist()
    assert len(counted) < targets.numel()
    end = VOCAB - 1
    text = sum(len(token_bytes(found[1], token)) for token in counted if token != end)
    rows = [row for row in read_metrics(config.output) if "valid_loss" in row]
    assert len(rows) == 2
    for row in rows:
        expected = row["valid_loss"] * len(counted) / math.log(2) / text
        assert row["valid_bits_per_byte"] == pytest.approx(expected, rel=1e-12)
        assert row["validation_seconds"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_samples_continue_their_prompt_the_same_each_time_and_change_no_number(
    temperature: float, tokens: Path, tmp_path: Path, alone: DistContext
) -> None:
    texts = []
    for name, count in (("one", 100), ("two", 100), ("without", 0)):
        sample = {"tokens": count, "prompt": "\u0105\u0106", "temperature": temperature}
        config = run(tokens, tmp_path / name, validation={"interval": 2, "samples": 5, "sample": sample})
        train(config, alone)
        texts.append(read_samples(config.output))
    assert texts[0] == texts[1] and texts[2] == []
    assert [row["step"] for row in texts[0]] == [2, 4] and all(row["text"] for row in texts[0])
    assert texts[0][0]["prompt"] == "\u0105\u0106"
    assert curve(tmp_path / "one") == curve(tmp_path / "without")
    left, right = (weights(tmp_path / name) for name in ("one", "without"))
    assert all(left[name].equal(right[name]) for name in left)


@pytest.mark.slow
def test_a_run_without_a_tokenizer_has_the_loss_alone(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=4, validation={"interval": 4, "samples": 5})
    train(config, alone)
    row = read_metrics(config.output)[-1]
    assert "valid_loss" in row and "valid_bits_per_byte" not in row and not read_samples(config.output)


def test_a_prompt_that_fills_the_context_and_too_few_epochs_are_refused(
    tokens: Path, tmp_path: Path, alone: DistContext
) -> None:
    with pytest.raises(UserError, match=r"schedule.warmup 3 steps must be below steps 1; lower it or train longer"):
        train(make(tokens, tmp_path / "few", epochs=0.01), alone)
    sample = {"tokens": 4, "prompt": "\u0105" * 16}
    config = run(tokens, tmp_path / "run", validation={"interval": 2, "samples": 5, "sample": sample})
    with pytest.raises(UserError, match=r"validation\.sample\.prompt has 16 tokens"):
        train(config, alone)


@pytest.mark.slow
def test_samples_after_the_checkpoint_are_replaced(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = run(tokens, tmp_path / "run", checkpoints={"interval": 2, "keep": 9})
    train(config, alone)
    first = read_samples(config.output)
    shutil.rmtree(newest_checkpoint(config.output))
    train(config, alone)
    assert read_samples(config.output) == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["tp2", "pp2", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("zero3", "interleaved"))]
)
def test_layouts_agree(layout: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    one = run(tokens, tmp_path / "one", model={"layers": 4, "dropout": 0.0})
    train(one, alone)
    other = run(tokens, tmp_path / layout, model={"layers": 4, "dropout": 0.0}, parallel=LAYOUTS[layout])
    run_ranks(RANKS, write(other))
    bits = [[row["valid_bits_per_byte"] for row in read_metrics(c.output) if "valid_loss" in row] for c in (one, other)]
    assert np.allclose(*bits, rtol=0, atol=1e-6)
    assert read_samples(other.output) == read_samples(one.output)


@pytest.mark.parametrize("layout", [pytest.param(None, id="alone"), pytest.param("pp2", marks=pytest.mark.slow)])
def test_a_run_ends_where_it_reaches_the_values_of_stop_at_and_goes_on_with_others(
    layout: str | None, tokens: Path, tmp_path: Path, alone: DistContext
) -> None:
    def job(output: str, **stop_at: float) -> list[dict[str, Any]]:
        validation = {"interval": 2, "samples": 5, "sample": {"tokens": 0}, "stop_at": stop_at}
        parallel = LAYOUTS[layout] if layout else {}
        config = run(tokens, tmp_path / output, steps=10, validation=validation, parallel=parallel)
        if layout:
            run_ranks(RANKS, write(config))
        else:
            train(config, alone)
        return read_metrics(config.output)

    whole = job("whole")
    losses = {row["step"]: row["valid_loss"] for row in whole if "valid_loss" in row}
    assert losses[2] > losses[6] > losses[10]
    short = job("run", valid_loss=losses[6], valid_bits_per_byte=100.0)
    assert [row["step"] for row in short] == [1, 2, 3, 4, 5, 6]
    assert job("run", valid_loss=losses[6], valid_bits_per_byte=100.0) == short  # finished
    assert [row["loss"] for row in job("run", valid_loss=-1.0)] == [row["loss"] for row in whole]


def test_values_to_stop_at_are_of_columns_that_a_validation_has(tokens: Path, tmp_path: Path) -> None:
    for column, problem in (
        ("loss", "the columns of a validation begin with valid_"),
        ("valid_task_core_centred", "is no score without tasks.names"),
    ):
        with pytest.raises(UserError, match=f"stop_at has '?{column}'?.*{problem}"):
            make(tokens, tmp_path / "run", validation={"stop_at": {column: 1.0}})
    # Scores are reached from below, losses from above.
    found = Measured({"valid_loss": 2.5, "valid_task_core_centred": 0.25})
    assert found.reached({"valid_loss": 2.5, "valid_task_core_centred": 0.25}) is not None
    for name, value in (("valid_loss", 2.4), ("valid_task_core_centred", 0.26), ("valid_task_blimp_accuracy", 0.0)):
        assert found.reached({"valid_loss": 3.0, name: value}) is None
    assert found.reached({}) is None
    for bound in (-1.0, 3.0):
        assert Measured({"valid_loss": math.nan}).reached({"valid_loss": bound}) is None


def test_a_validation_that_is_not_finite_neither_ends_a_run_nor_is_saved(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation = {"interval": 2, "samples": 5, "stop_at": {"valid_loss": 9.0}}
    config = run(tokens, tmp_path / "run", validation=validation)
    monkeypatch.setattr(Engine, "evaluate", lambda engine, batches: [math.nan] * engine.sums)
    assert train(config, alone).step == STEPS and read_metrics(config.output)[-1]["valid_loss"] is None
    manifest = read_manifest(newest_checkpoint(config.output))
    assert manifest.valid_loss is None and not manifest.valid_metrics


def test_a_column_that_no_validation_has_is_named_once(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    validation = {"interval": 2, "samples": 5, "sample": {"tokens": 0}, "stop_at": {"valid_los": 9.0}}
    assert train(run(tokens, tmp_path / "run", validation=validation), alone).step == STEPS
    [line] = [text for text in caplog.messages if "stop_at" in text]
    assert line.startswith("warning: validation.stop_at has valid_los, and a validation valid_loss, ")


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
    assert per_epoch == packed_data(config, "train").per_epoch
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


def test_a_batch_without_a_target_has_no_loss(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    with IndexedWriter(tmp_path / "ends", "<u2") as writer:
        for _ in range(200):  # documents of one token: every target is the first token of one
            writer.add(np.array([3]))
    masked = {"steps": 4, "documents": {"eod_mask_loss": True}}
    data = {"train": str(tokens / "train"), "valid": str(tmp_path / "ends")}
    with pytest.raises(UserError, match=r"ends: the first 7 samples have no target: documents of one token; "):
        train(make(tokens, tmp_path / "run", data=data, **masked), alone)
    data = {"train": str(tmp_path / "ends"), "valid": str(tokens / "valid")}
    config = make(tokens, tmp_path / "run", data=data, **masked)
    logging.getLogger("gpt2train").propagate = True
    train(config, alone)
    assert [row["loss"] for row in read_metrics(config.output)] == [None] * 4
    assert "the batch of step 1 has no target" in caplog.text
