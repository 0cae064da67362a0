"""Bytes that the layouts exchange in a step on two processes, by operation and dtype.

The steps are simulated; `simulate/test_against_runs.py` compares those of these layouts with real ones.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.model.families import block_sizes
from gpt2train.model.shape import Shape
from gpt2train.simulate.rank import simulate_rank
from tests.gpt2train.simulate.against import run, sent

pytestmark = pytest.mark.slow
SHAPE = Shape(vocab=500, layers=1, heads=4, hidden=64, context=64)
ACCUMULATION = 4  # micro-batches of two samples
ACTIVATION = SHAPE.hidden * SHAPE.context * 2  # elements of a residual stream
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
Found = Callable[[str, str, int], dict[str, int]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Bytes of the first process by layout, precision and layers."""

    @functools.cache
    def of(layout: str, precision: str, layers: int) -> dict[str, int]:
        parallel = LAYOUTS[layout]
        changes = {"model": {"layers": layers}, "precision": precision, "parallel": parallel}
        data = 2 // parallel.get("tp", 1) // parallel.get("pp", 1)
        return {name: size for name, (_, size) in sent(simulate_rank(run(Path("none"), changes, data), 2, 0)).items()}

    return of


def per_block(found: Found, layout: str, precision: str) -> dict[str, float]:
    few, many = (found(layout, precision, layers) for layers in (FEW, MANY))
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
    sent = {name: size for name, size in found("pp", precision, MANY).items() if "float64" not in name}  # not the norm
    assert sent == {
        f"send {NAMES[precision]}": ACCUMULATION * ACTIVATION * ITEM[precision],
        "all-reduce float32": 4 * SHAPE.padded_vocab * SHAPE.hidden,  # gradients of the tied embedding
    }
