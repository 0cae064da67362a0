"""Planned memory against the measured bytes of each rank in a training step."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpt2train.config import RunConfig
from gpt2train.parallel.layout import Layout
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import pieces
from gpt2train.settings import build, layer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import write

HERE = Path(__file__).parent
T5 = {
    "model": {"family": "t5", "options": {"encoder_layers": 2, "decoder_context": 48}},
    "objective": {"name": "span_corruption", "options": {"sentinels": "top", "sentinel_count": 10, "end_id": 0}},
}
FULL = {"activation_checkpointing": "full"}
OPTIMIZER_OFFLOAD = {"cpu_offload": True, "offload_placement": "optimizer"}
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "one process": {},
        "more layers": {"model": {"layers": 8}},
        "large micro-batch": {"batch": {"micro_batch": 16, "global_batch": 16}},
        "short context": {"model": {"context": 64}},
        "large vocabulary": {"vocab": 4000},
        "bf16": {"precision": "bf16"},
        "offload": {"parallel": {"cpu_offload": True}, "model": {"layers": 8}},
        "offload of the optimizer": {"parallel": OPTIMIZER_OFFLOAD, "model": {"layers": 8}},
        "zero 3 offload": {"parallel": {"cpu_offload": True, "zero": 3}, "model": {"layers": 8}},
        "selective": {"parallel": {"activation_checkpointing": "selective"}},
        "full": {"parallel": FULL, "model": {"layers": 8}, "batch": {"micro_batch": 16, "global_batch": 16}},
        "relu, small heads, no biases": {
            "model": {"options": {"activation": "relu", "head_dim": 16, "bias": False, "tied": False}}
        },
        "llama": {"model": {"family": "llama"}},
        "llama, selective": {
            "model": {"family": "llama", "options": {"attention_bias": "qkv", "kv_heads": 2}},
            "parallel": {"activation_checkpointing": "selective"},
        },
        "llama, full": {"model": {"family": "llama"}, "parallel": FULL},
        "t5": T5,
        "t5, large decoder": layer(T5, {"model": {"layers": 6, "options": {"decoder_context": 128}}}),
        "t5, gated, untied": layer(T5, {"model": {"options": {"activation": "gated-gelu", "tied": False}}}),
        "t5, full": layer(T5, {"parallel": FULL}),
    },
    2: {
        "dp 2": {"parallel": {"zero": 0}},
        "dp 2 zero 1": {"parallel": {"zero": 1}},
        "dp 2 zero 2": {"parallel": {"zero": 2}},
        "dp 2 zero 3": {"parallel": {"zero": 3}},
        "dp 2 offload": {"parallel": {"cpu_offload": True}},
        "dp 2 zero 1 offload": {"parallel": {"zero": 1, "cpu_offload": True}},
        "dp 2 zero 3 offload": {"parallel": {"zero": 3, "cpu_offload": True}},
        "dp 2 zero 1, no accumulation": {"parallel": {"zero": 1}, "batch": {"micro_batch": 8}},
        "dp 2, bf16": {"parallel": {"zero": 0}, "precision": "bf16"},
        "dp 2 zero 1, bf16": {"parallel": {"zero": 1}, "precision": "bf16"},
        "dp 2 zero 1, bf16, once": {"parallel": {"zero": 1}, "precision": "bf16", "batch": {"micro_batch": 8}},
        "dp 2 zero 3, bf16": {"parallel": {"zero": 3}, "precision": "bf16"},
        "tp 2, bf16": {"parallel": {"tp": 2}, "precision": "bf16"},
        "pp 2, bf16": {"parallel": {"pp": 2}, "precision": "bf16"},
        "tp 2": {"parallel": {"tp": 2}},
        "tp 2, whole sequence": {"parallel": {"tp": 2, "sequence_parallel": False}},
        "pp 2": {"parallel": {"pp": 2}},
        "pp 2 gpipe": {"parallel": {"pp": 2, "schedule": "gpipe"}},
        "pp 2 interleaved": {"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}},
        "t5, tp 2": layer(T5, {"parallel": {"tp": 2}}),
    },
}


def run(output: Path, changes: dict[str, Any], processes: int) -> RunConfig:
    """A model whose activations, states and logits all count: 3.8 MB of parameters, 18 MB of activations."""
    base = {
        "model": {"layers": 4, "heads": 4, "hidden": 128, "context": 128, "dropout": 0.0},
        "batch": {"micro_batch": 4, "global_batch": 8 * processes},
        "schedule": {"warmup": 1},
        "precision": "fp32",
        "device": "cpu",
        "vocab": 1000,
        "output": str(output),
        "data": {"train": "none"},
    }
    return build(RunConfig, base, changes)


def compare(folder: Path, processes: int) -> dict[str, list[float]]:
    """Measured bytes of every rank for each layout, as multiples of the planned ones."""
    layouts = enumerate(LAYOUTS[processes].items())
    runs = {name: run(folder / f"{i}", changes, processes) for i, (name, changes) in layouts}
    report = folder / "peaks.json"
    run_ranks(HERE / "measure_peak.py", str(report), *map(write, runs.values()), processes=processes)
    peaks = json.loads(report.read_text())
    found: dict[str, list[float]] = {}
    for number, (name, config) in enumerate(runs.items()):
        layout = Layout.of(config, processes)
        parts = pieces(config, config.shape)
        for rank in range(processes):
            at = layout.coordinates(rank).pp
            planned = peak(config, config.shape, layout, parts[at], at)
            found.setdefault(name, []).append(peaks[rank][number] / (planned.device + planned.on_cpu + planned.copies))
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", LAYOUTS)
def test_processes_need_the_planned_memory(processes: int, tmp_path: Path) -> None:
    found = compare(tmp_path, processes)
    wrong = {name: ratios for name, ratios in found.items() if ratios != [pytest.approx(1, abs=0.1)] * processes}
    assert found.keys() == LAYOUTS[processes].keys() and not wrong
