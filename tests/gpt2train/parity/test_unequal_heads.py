"""Heads that the tensor-parallel degree does not divide: training, resuming and resharding against one process.

20 AdamW steps with accumulation and clipping, dropout off; the bound is that of the matrix, the loss of every step
within 1e-5 of the single process in fp32.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.config import RunConfig
from gpt2train.settings import layer
from tests.gpt2train.checkpoint.test_layouts import HALF, saved
from tests.gpt2train.jobs import curve, make, weights
from tests.gpt2train.parity.layout_table import Table, check, job
from tests.gpt2train.parity.t5_runs import make_t5

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"model": {"heads": 5, "hidden": 40}},
    "muon": {"model": {"heads": 5, "hidden": 40}, "optimizer": {"name": "muon"}},
    "llama": {
        "model": {"family": "llama", "heads": 6, "hidden": 48, "options": {"kv_heads": 3, "inner": 64, "qk_norm": True}}
    },
    "llama, 2 of keys": {
        "model": {"family": "llama", "heads": 6, "hidden": 48, "options": {"kv_heads": 2, "inner": 64}}
    },
    "t5": {"model": {"layers": 3, "heads": 3, "hidden": 24, "options": {"encoder_layers": 1}}},
}
INTERLEAVED = {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}
# Family and layout.
TWO: Table = {
    "tp 2": ("gpt2", {"tp": 2}),
    "tp 2 llama": ("llama", {"tp": 2}),
    "tp 2 t5": ("t5", {"tp": 2}),
}
MORE_OF_TWO: Table = {
    "tp 2 whole sequences, recomputed": (
        "gpt2",
        {"tp": 2, "sequence_parallel": False, "activation_checkpointing": "full"},
    ),
    "tp 2 partly recomputed": ("gpt2", {"tp": 2, "activation_checkpointing": "selective"}),
    "tp 2 muon": ("muon", {"tp": 2}),
    "tp 2 llama whole sequences": ("llama", {"tp": 2, "sequence_parallel": False}),
    "tp 2 t5 whole sequences": ("t5", {"tp": 2, "sequence_parallel": False}),
}
FOUR: Table = {
    "tp 4": ("gpt2", {"tp": 4}),
    "tp 4 llama": ("llama", {"tp": 4}),
    "tp 4 llama, 2 of keys": ("llama, 2 of keys", {"tp": 4, "sequence_parallel": False}),
    **{f"tp 2 dp 2 zero {zero}": ("gpt2", {"tp": 2, "zero": zero}) for zero in (0, 1, 2, 3)},
    "tp 2 dp 2 zero 3 offload": ("gpt2", {"tp": 2, "zero": 3, "cpu_offload": True}),
    "tp 2 dp 2 zero 3 muon": ("muon", {"tp": 2, "zero": 3}),
    "tp 2 pp 2": ("gpt2", {"tp": 2, "pp": 2}),
    "tp 2 pp 2 gpipe": ("llama", {"tp": 2, "pp": 2, "schedule": "gpipe", "sequence_parallel": False}),
    "tp 2 pp 2 interleaved": ("gpt2", {"tp": 2, **INTERLEAVED}),
    "tp 2 pp 2 t5": ("t5", {"tp": 2, "pp": 2}),
    "tp 2 dp 2 zero 3 t5": ("t5", {"tp": 2, "zero": 3}),
}


def run(tokens: Path, output: Path, family: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
    """A small run of a family; every layout adds micro-batches up."""
    kind = make_t5 if family == "t5" else make
    base = {
        "model": {"layers": 4},
        "batch": {"micro_batch": 1, "global_batch": 8},
        "optimizer": {"lr": 3e-3},
        "parallel": parallel,
    }
    return kind(tokens, output, **layer(layer(base, FAMILIES[family]), changes))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_train_like_one(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, TWO, 2)


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
def test_two_processes_train_like_one_on_further_layouts(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, MORE_OF_TWO, 2)


@pytest.mark.exhaustive
@pytest.mark.timeout(2500)
def test_four_processes_train_like_one(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, FOUR, 4)


def resumed(tokens: Path, output: Path, before: Path, parallel: dict[str, Any], **changes: Any) -> RunConfig:
    """A GPT-2 that starts with the full state of another run at half its steps."""
    checkpoints = {"init_from": saved(before), "restore": "full"}
    return run(tokens, output, "gpt2", parallel, checkpoints=checkpoints, **changes)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_checkpoint_resumes_bit_for_bit_and_on_other_layouts(tokens: Path, tmp_path: Path) -> None:
    """tp 2 to itself with dropout; and to one process, from there to dp 3, and back to tp 2."""
    drop = {"model": {"dropout": 0.1}}
    job(
        [
            run(tokens, tmp_path / "drop", "gpt2", {"tp": 2}, **drop),
            resumed(tokens, tmp_path / "again", tmp_path / "drop", {"tp": 2}, **drop),
            run(tokens, tmp_path / "tp", "gpt2", {"tp": 2}),
        ],
        2,
    )
    for key in ("loss", "grad_norm"):
        assert curve(tmp_path / "again", key) == curve(tmp_path / "drop", key)[HALF:]
    first, second = weights(tmp_path / "drop"), weights(tmp_path / "again")
    assert all((first[name] == second[name]).all() for name in first)

    batch = {"batch": {"micro_batch": 1, "global_batch": 12}}  # that three processes divide
    job([run(tokens, tmp_path / "one", "gpt2", {}, **batch)], 1)
    job([run(tokens, tmp_path / "split", "gpt2", {"tp": 2}, **batch)], 2)
    job([resumed(tokens, tmp_path / "one after tp", tmp_path / "split", {}, **batch)], 1)
    job([resumed(tokens, tmp_path / "three after tp", tmp_path / "split", {"zero": 3}, **batch)], 3)
    job([resumed(tokens, tmp_path / "tp after one", tmp_path / "one", {"tp": 2}, **batch)], 2)
    expected = np.array(curve(tmp_path / "one"))[HALF:]
    for name in ("one after tp", "three after tp", "tp after one"):
        assert np.max(np.abs(np.array(curve(tmp_path / name)) / expected - 1)) <= 1e-5, name
