"""Training on two corpora with document masks: the same numbers on every layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gpt2train.config import RunConfig
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from tests.gpt2train.jobs import curve, finish, make, start, write

STEPS = 10
RANKS = Path(__file__).parents[1] / "parity" / "train_runs.py"
LAYOUTS: dict[str, dict[str, Any]] = {"dp": {"zero": 2}, "tp": {"tp": 2}, "pp": {"pp": 2}}
CHOICES = {"reset_positions": True, "mask_documents": True, "eod_mask_loss": True}


def run(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    """3 of 4 samples from one corpus; the other is gone through twice."""
    corpora = [{"prefix": str(tokens / "train"), "weight": 0.75}, {"prefix": str(tokens / "valid"), "weight": 0.25}]
    data = {"train": corpora, "valid": str(tokens / "valid")}
    base: dict[str, Any] = {
        "data": data,
        "documents": CHOICES,
        "batch": {"micro_batch": 1, "global_batch": 8},
        "steps": STEPS,
    }
    return make(tokens, output, **(base | changes))


@pytest.fixture(scope="module")
def alone(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunConfig]:
    """Runs of one process, with all choices and without them."""
    folder, threads = tmp_path_factory.mktemp("one"), torch.get_num_threads()
    runs = {"whole": run(tokens, folder / "run"), "plain": run(tokens, folder / "plain", documents={})}
    torch.set_num_threads(1)
    for config in runs.values():
        train(config, join("cpu"))
        dist.destroy_process_group()
    torch.set_num_threads(threads)
    return runs


@pytest.mark.exhaustive
def test_every_layout_sees_the_same_documents(tokens: Path, tmp_path: Path, alone: dict[str, RunConfig]) -> None:
    runs = {name: run(tokens, tmp_path / name, parallel=layout) for name, layout in LAYOUTS.items()}
    code, _, err = finish(start(str(RANKS), *map(write, runs.values())), 240)
    assert code == 0, err
    expected = curve(alone["whole"].output)
    assert len(expected) == STEPS and expected[-1] < expected[0]
    for name, config in runs.items():
        assert not Path(f"{config.output}.error").exists(), Path(f"{config.output}.error").read_text()
        assert np.allclose(curve(config.output), expected, rtol=1e-5, atol=0), name
        assert np.allclose(curve(config.output, "grad_norm"), curve(alone["whole"].output, "grad_norm"), rtol=1e-4)


def test_the_data_settings_change_the_loss(alone: dict[str, RunConfig]) -> None:
    with_choices, without = curve(alone["whole"].output), curve(alone["plain"].output)
    assert abs(with_choices[0] - without[0]) > 1e-4  # the same weights, other targets and positions
