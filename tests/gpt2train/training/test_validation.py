"""Bits per byte and sample text of a validation: their definition, every layout, and no effect on the training."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.config import RunConfig
from gpt2train.data.run_tokenizer import find_run_tokenizer
from gpt2train.data.token_bytes import token_bytes
from gpt2train.data.training_data import validation_data
from gpt2train.errors import UserError
from gpt2train.model.loss import IGNORE
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.samples import read_samples
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from gpt2train.training.validation import Measured
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.forked_ranks import run_ranks
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
    """A short run with a tokenizer in its folder; it validates twice."""
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
    found, data = find_run_tokenizer(config), validation_data(config)
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


def test_a_prompt_that_fills_the_context_is_refused(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
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


def test_scores_are_reached_from_below_and_losses_from_above() -> None:
    found = Measured({"valid_loss": 2.5, "valid_task_core_centred": 0.25})
    assert found.reached({"valid_loss": 2.5, "valid_task_core_centred": 0.25}) is not None
    for name, value in (("valid_loss", 2.4), ("valid_task_core_centred", 0.26), ("valid_task_blimp_accuracy", 0.0)):
        assert found.reached({"valid_loss": 3.0, name: value}) is None
    assert found.reached({}) is None


def test_a_column_that_no_validation_has_is_named_once(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    validation = {"interval": 2, "samples": 5, "sample": {"tokens": 0}, "stop_at": {"valid_los": 9.0}}
    assert train(run(tokens, tmp_path / "run", validation=validation), alone).step == STEPS
    [line] = [text for text in caplog.messages if "stop_at" in text]
    assert line.startswith("warning: validation.stop_at has valid_los, and a validation valid_loss, ")
