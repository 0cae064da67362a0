"""Simulated steps against real ones: the peak of live bytes, and calls and bytes of the collectives, of every rank."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.simulate.against import differences

VALUES = {"family": "llama", "options": {"kv_heads": 2, "value_embeddings": 2}}
T5 = {"model": {"family": "t5"}, "objective": {"name": "span_corruption"}}
ONE: dict[str, dict[str, Any]] = {
    "bf16": {},
    "offload": {"parallel": {"cpu_offload": True}},
    "classifier": {"model": {"labels": 3}, "objective": {"name": "classification"}},
    "dropout, selective": {"model": {"dropout": 0.1}, "parallel": {"activation_checkpointing": "selective"}},
    "dropout, full recomputation": {"model": {"dropout": 0.1}, "parallel": {"activation_checkpointing": "full"}},
    "t5": T5,
    "fp8": {"performance": {"fp8": "tensorwise"}},
    "value embeddings": {"model": VALUES},
}
FIVE_HEADS = {"heads": 5, "hidden": 80}  # of which the ranks have unequal numbers
TWO: dict[str, dict[str, Any]] = {
    "tp": {"parallel": {"tp": 2}},
    "tp, 5 heads": {"parallel": {"tp": 2}, "model": FIVE_HEADS},
    "zero 3": {"parallel": {"zero": 3}},
    "pp": {"parallel": {"pp": 2}},
    "pp, value embeddings": {"parallel": {"pp": 2}, "model": VALUES},
}
MORE: dict[str, dict[str, Any]] = {
    "zero 0": {"parallel": {"zero": 0}},
    "zero 1": {"parallel": {"zero": 1}},
    "zero 2": {"parallel": {"zero": 2}},
    "zero 3, fp8": {"parallel": {"zero": 3}, "performance": {"fp8": "tensorwise"}},
    "tp, fp8": {"parallel": {"tp": 2}, "performance": {"fp8": "rowwise"}},
    "zero 3, fp32": {"parallel": {"zero": 3}, "precision": "fp32"},
    "zero 1, fp16": {"parallel": {"zero": 1}, "precision": "fp16"},
    "offload": {"parallel": {"zero": 3, "cpu_offload": True}},
    "offload of the optimizer": {"parallel": {"zero": 1, "cpu_offload": True, "offload_placement": "optimizer"}},
    "tp, whole sequence": {"parallel": {"tp": 2, "sequence_parallel": False}, "model": {"dropout": 0.1}},
    "tp, selective": {"parallel": {"tp": 2, "activation_checkpointing": "selective"}},
    "gpipe": {"parallel": {"pp": 2, "schedule": "gpipe"}},
    "interleaved": {"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}},
    "llama": {"parallel": {"tp": 2}, "model": {"family": "llama"}, "precision": "fp32"},
    "muon": {"parallel": {"zero": 3}, "optimizer": {"name": "muon"}},
    "muon, zero 0": {"parallel": {"zero": 0}, "optimizer": {"name": "muon"}},
    "t5, tp": {"parallel": {"tp": 2}, **T5},
    "t5, pp": {"parallel": {"pp": 2}, **T5},
    "tp, 5 heads, fp32, whole sequence, dropout": {
        "parallel": {"tp": 2, "sequence_parallel": False},
        "model": {**FIVE_HEADS, "dropout": 0.1},
        "precision": "fp32",
    },
    "tp, 5 heads, full recomputation": {"parallel": {"tp": 2, "activation_checkpointing": "full"}, "model": FIVE_HEADS},
    "t5, tp, 5 heads": {"parallel": {"tp": 2}, **T5, "model": {**FIVE_HEADS, "family": "t5"}},
    "tp, value embeddings of 6 and 3 heads": {
        "parallel": {"tp": 2},
        "model": {**VALUES, "heads": 6, "hidden": 96, "options": {"kv_heads": 3, "value_embeddings": 1}},
    },
    "zero 3, value embeddings, full recomputation": {
        "parallel": {"zero": 3, "activation_checkpointing": "full"},
        "model": VALUES,
    },
    "interleaved, value embeddings": {
        "parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2},
        "model": VALUES,
    },
}
SELECTIVE: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "dropout": {"model": {"dropout": 0.1}},
    "llama with biases": {"model": {"family": "llama", "options": {"attention_bias": "all", "mlp_bias": True}}},
    "t5": T5,
}
FOUR: dict[str, dict[str, Any]] = {
    "tp x pp": {"parallel": {"tp": 2, "pp": 2}},
    "tp x dp, zero 3": {"parallel": {"tp": 2, "zero": 3}},
    "pp x dp, zero 1": {"parallel": {"pp": 2, "zero": 1}},
    "hybrid": {"parallel": {"zero": 3, "dp_shard_degree": 2}},
    "pp 4": {"parallel": {"pp": 4}},
    "tp 4, 5 heads": {"parallel": {"tp": 4}, "model": FIVE_HEADS},
    "tp x pp, 5 heads": {"parallel": {"tp": 2, "pp": 2}, "model": FIVE_HEADS},
    "tp x dp, zero 3, 5 heads, muon": {
        "parallel": {"tp": 2, "zero": 3},
        "model": FIVE_HEADS,
        "optimizer": {"name": "muon"},
    },
    **{
        f"tp 4, selective, {name}": {"parallel": {"tp": 4, "activation_checkpointing": "selective"}, **changes}
        for name, changes in SELECTIVE.items()
    },
}

INTERLEAVED = {"schedule": "interleaved", "virtual_pipeline_stages": 2}
THREE_WAYS = {"tp": 2, "pp": 2}  # of 8 processes: tp 2 x pp 2 x dp 2
EIGHT: dict[str, dict[str, Any]] = {"interleaved, zero 3": {"parallel": {**THREE_WAYS, **INTERLEAVED, "zero": 3}}}


def check(folder: Path, layouts: dict[str, dict[str, Any]], processes: int) -> None:
    for name, ranks in differences(folder, layouts, processes).items():
        for rank, (peak, collectives) in enumerate(ranks):
            assert peak == pytest.approx(1, abs=0.05), (name, rank)
            assert collectives == {}, (name, rank)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_one_process(tmp_path: Path) -> None:
    check(tmp_path, ONE, 1)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    check(tmp_path, TWO, 2)


@pytest.mark.exhaustive
def test_two_processes_on_more_layouts(tmp_path: Path) -> None:
    check(tmp_path, MORE, 2)


@pytest.mark.exhaustive
def test_four_processes(tmp_path: Path) -> None:
    check(tmp_path, FOUR, 4)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_eight_processes(tmp_path: Path) -> None:
    check(tmp_path, EIGHT, 8)
