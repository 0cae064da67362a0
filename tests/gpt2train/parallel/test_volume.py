"""Bytes that the layouts exchange in a step on two processes, by operation and dtype."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.model.families import block_sizes
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.parallel.volume_cases import ACCUMULATION, ACTIVATION, SHAPE

pytestmark = pytest.mark.slow
RANKS = Path(__file__).parent / "run_cases.py"
ITEM = {"fp32": 4, "bf16": 2}
NAMES = {"fp32": "float32", "bf16": "bfloat16"}
FEW, MANY = 2, 4  # layers; the difference belongs to the blocks
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "tp, whole sequence": {"tp": 2, "sequence_parallel": False},
    "zero 0": {"zero": 0},
    "zero 1": {"zero": 1},
    "zero 3": {"zero": 3},
    "pp": {"pp": 2},
}
Found = Callable[[str, str, int], dict[str, Any]]


def case(layout: str, precision: str, layers: int) -> str:
    return f"volume_cases.volume {layers} {precision!r} {LAYOUTS[layout]!r}".replace(": ", ":").replace(", ", ",")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Findings of the first process by layout, precision and layers."""
    output = tmp_path_factory.mktemp("volume") / "found.json"
    cases = [case(layout, precision, layers) for layout in LAYOUTS for precision in ITEM for layers in (FEW, MANY)]
    run_ranks(RANKS, str(output), *cases)
    findings = json.loads(output.read_text())
    return lambda layout, precision, layers: findings[case(layout, precision, layers)][0]


def per_block(found: Found, layout: str, precision: str) -> dict[str, float]:
    """Bytes of a block in a step."""
    few, many = (found(layout, precision, layers)["bytes"] for layers in (FEW, MANY))
    return {name: (many[name] - few.get(name, 0)) / (MANY - FEW) for name in many if many[name] != few.get(name, 0)}


PARAMETERS = sum(size[0] * (size[1] if len(size) > 1 else 1) for size in block_sizes(SHAPE).values())


@pytest.mark.parametrize("precision", ITEM)
def test_tensor_parallel_block_exchanges_eight_activation_volumes(precision: str, found: Found) -> None:
    """As in Megatron-LM: two all-gathers and two reduce-scatters in each direction; an all-reduce counts as both."""
    volume = ACCUMULATION * ACTIVATION * ITEM[precision]
    name = NAMES[precision]
    sequence = per_block(found, "tp", precision)
    # Of the two norms and the two biases after row-parallel products each process has the gradients of its positions.
    whole = sum(size[0] for size in block_sizes(SHAPE).values() if size == (SHAPE.hidden,))
    assert sequence == {
        f"all-gather {name}": 4 * volume,
        f"reduce-scatter {name}": 4 * volume,
        "all-reduce float32": 4 * whole,
    }
    assert per_block(found, "tp, whole sequence", precision) == {f"all-reduce {name}": 4 * volume}


@pytest.mark.parametrize("precision", ITEM)
def test_zero_gathers_blocks_in_the_compute_dtype_and_reduces_in_float32(precision: str, found: Found) -> None:
    gather, reduce = f"all-gather {NAMES[precision]}", "reduce-scatter float32"
    # ZeRO 3 in each direction of each micro-batch, ZeRO 1 once a step.
    assert per_block(found, "zero 3", precision) == {
        gather: 2 * ACCUMULATION * PARAMETERS * ITEM[precision],
        reduce: ACCUMULATION * PARAMETERS * 4,
    }
    assert per_block(found, "zero 1", precision) == {gather: PARAMETERS * ITEM[precision], reduce: PARAMETERS * 4}
    assert per_block(found, "zero 0", precision) == {"all-reduce float32": PARAMETERS * 4}


@pytest.mark.parametrize("precision", ITEM)
def test_pipeline_sends_a_residual_stream_in_the_compute_dtype(precision: str, found: Found) -> None:
    sent = {name: size for name, size in found("pp", precision, MANY)["bytes"].items() if "float" in name}
    activations = ACCUMULATION * ACTIVATION * ITEM[precision]
    # torch 2.11 sends one number of float32 beside them.
    assert activations <= sent[f"send {NAMES[precision]}"] <= sum(sent.values()) <= activations + 4
