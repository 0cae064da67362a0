"""Resuming a checkpoint on another layout, optimizer included; on the same layout bit for bit.

The layouts of a number of processes share one torchrun job: first those that save at step 10, each of which trains on
to step 20, then the pairs, which begin at that checkpoint. The bound is that of the matrix: the loss of every step
within 1e-5.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.config import RunConfig
from gpt2train.convert.detect import find_source
from tests.gpt2train.checkpoint.stored_weights import load_weights
from tests.gpt2train.jobs import curve, finish, make, start, write

RANKS = Path(__file__).parents[1] / "parity/train_runs.py"  # trains the given runs in one process group
HALF, STEPS = 10, 20
SECONDS = 900.0  # for a job of 18 runs on 4 processes; 60 on two free cores

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "dp2-zero3": {"zero": 3},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "dp4-zero1": {"zero": 1},
    "dp4-zero3": {"zero": 3},
    "hybrid": {"zero": 3, "dp_shard_degree": 2},
    "offload": {"zero": 2, "cpu_offload": True},
    "tp4": {"tp": 4},
    "pp4": {"pp": 4},
    "tp2-dp2": {"tp": 2},
    "tp2-dp2-zero3": {"tp": 2, "zero": 3, "sequence_parallel": False},
    "tp2-pp2": {"tp": 2, "pp": 2},
    "pp2-dp2": {"pp": 2},
    "interleaved": {"pp": 2, "zero": 3, "schedule": "interleaved", "virtual_pipeline_stages": 2},
}

# In the order of the jobs: a layout resumes after the one that saved.
FOUR = [("dp4-zero3", "tp2-pp2"), ("tp2-pp2", "hybrid"), ("hybrid", "pp2-dp2"), ("pp2-dp2", "offload")]
FOUR += [("pp4", "dp4-zero1")]
ONE = [("pp4", "one"), ("tp2-pp2", "one"), ("dp4-zero3", "one")]
SAME = ["dp4-zero3", "interleaved"]
SAME_MORE = ["hybrid", "offload", "tp2-dp2", "tp2-pp2"]


def run(tokens: Path, output: Path, layout: str, **changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "model": {"layers": 4, "heads": 4},
        "batch": {"micro_batch": 1, "global_batch": 8},
        "checkpoints": {"interval": HALF},
        "parallel": LAYOUTS[layout],
        "steps": STEPS,
    }
    return make(tokens, output, **(base | changes))


def saved(run_folder: Path) -> str:
    return str(run_folder / "checkpoints" / f"step-{HALF:08d}")


def resumed_run(tokens: Path, folder: Path, before: Path, layout: str, **changes: Any) -> RunConfig:
    checkpoints = {"interval": STEPS, "init_from": saved(before), "restore": "full"}
    return run(tokens, folder, layout, checkpoints=checkpoints, **changes)


def job(configs: list[RunConfig], processes: int) -> None:
    code, _, err = finish(start(str(RANKS), *map(write, configs), processes=processes), SECONDS)
    assert code == 0, err
    for config in configs:
        refusal = Path(f"{config.output}.error")
        assert not refusal.exists(), refusal.read_text()


def differences(folder: Path, pairs: list[tuple[str, str]], reference: Path) -> dict[str, float]:
    """The largest relative difference of a pair's second half from the reference's."""
    expected = np.array(curve(reference))[HALF:]
    found = {}
    for before, after in pairs:
        ours = folder / f"{before}--{after}"
        assert curve(ours, "step") == list(range(HALF + 1, STEPS + 1))
        found[ours.name] = float(np.max(np.abs(np.array(curve(ours)) / expected - 1)))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


def runs_of(pairs: list[tuple[str, str]], tokens: Path, folder: Path) -> list[RunConfig]:
    before = [run(tokens, folder / name, name) for name in dict.fromkeys(name for name, _ in pairs)]
    after = [resumed_run(tokens, folder / f"{a}--{b}", folder / a, b) for a, b in pairs]
    return before + after


@pytest.mark.exhaustive
@pytest.mark.timeout(2000)
def test_layouts_of_four_processes_resume_each_others_checkpoints(tokens: Path, folder: Path) -> None:
    job(runs_of(FOUR, tokens, folder), 4)
    found = differences(folder, FOUR, folder / "dp4-zero3")
    assert max(found.values()) <= 1e-5, found
    one = [resumed_run(tokens, folder / f"{a}--{b}", folder / a, b) for a, b in ONE]
    job(one, 1)
    found = differences(folder, ONE, folder / "dp4-zero3")
    assert max(found.values()) <= 1e-5, found
    check_readable(FOUR, folder)


def check_readable(pairs: list[tuple[str, str]], folder: Path) -> None:
    """Check that checkpoints of every layout can be merged, with the same tensor names and equal weights."""
    expected = load_weights(find_source(folder / "dp4-zero3").checkpoint)
    for name in dict.fromkeys(name for name, _ in pairs):
        weights = load_weights(find_source(folder / name).checkpoint)
        assert list(weights) == list(expected), name
        worst = max(float((weights[key] - expected[key]).abs().max()) for key in expected)
        assert worst <= 1e-3, (name, worst)


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "names", [pytest.param(SAME, marks=pytest.mark.slow), pytest.param(SAME_MORE, marks=pytest.mark.exhaustive)]
)
def test_the_same_layout_resumes_bit_for_bit(tokens: Path, folder: Path, names: list[str]) -> None:
    """With dropout, accumulation and clipping, on every kind of layout."""
    drop = {"model": {"layers": 4, "heads": 4, "dropout": 0.1}}
    whole = {name: folder / f"{name}-drop" for name in names}
    again = {name: folder / f"{name}-again" for name in names}
    runs = [run(tokens, whole[name], name, **drop) for name in names]
    job(runs + [resumed_run(tokens, again[name], whole[name], name, **drop) for name in names], 4)
    for name in names:
        for key in ("loss", "grad_norm", "lr", "tokens"):
            assert curve(again[name], key) == curve(whole[name], key)[HALF:], (name, key)
        a, b = (load_weights(find_source(place[name]).checkpoint) for place in (whole, again))
        assert all((a[key] == b[key]).all() for key in a), name
