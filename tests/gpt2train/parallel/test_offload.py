"""CPU offload: the device holds the root group and a block or two at a time, at every ZeRO stage; the numbers stay."""

from pathlib import Path
from typing import Any, cast

import pytest
from torch import nn

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from gpt2train.training.engine import Engine
from tests.gpt2train.jobs import curve, make
from tests.gpt2train.parallel.pipeline_cases import batch

LAYERS = 7
AHEAD = 2  # FSDP gathers the next block while one computes


def config(output: Path, **parallel: Any) -> RunConfig:
    return make(output, output, model={"layers": LAYERS}, parallel=parallel, performance={"prefetch": False})


def gathered(engine: Engine) -> int:
    """Blocks whose whole parameters are on the device."""
    groups = [cast(Any, block)._get_fsdp_state()._fsdp_param_group for block in engine.model_parts[0].blocks.values()]
    return sum(group.is_unsharded for group in groups)


def watch(engine: Engine) -> list[int]:
    """Numbers of gathered blocks, noted after each block's forward and before each block's backward."""
    seen: list[int] = []

    def note(*_: Any) -> None:
        seen.append(gathered(engine))

    for block in engine.model_parts[0].blocks.values():
        cast(nn.Module, block).register_forward_hook(note)
        cast(nn.Module, block).register_full_backward_pre_hook(note)
    return seen


def batches() -> list[Batch]:
    return [batch(range(first, first + 2)) for first in (0, 2, 4)]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_device_holds_one_block_at_a_time(tmp_path: Path, alone: DistContext, zero: int, recompute: str) -> None:
    engine = Engine(config(tmp_path, zero=zero, cpu_offload=True, activation_checkpointing=recompute), alone)
    seen = watch(engine)
    first = batches()[0]
    engine.model_parts[0](first.tokens, first.targets)
    assert gathered(engine) == 0
    engine.accumulate(batches(), 96, 1)  # gradients of earlier micro-batches are there
    assert gathered(engine) == 0
    assert len(seen) >= LAYERS * 7 and max(seen) <= AHEAD, seen
    for parameter in engine.parameters():
        assert parameter.grad is not None and parameter.grad.device.type == "cpu"


@pytest.mark.parametrize("zero", [0, 3])
def test_the_numbers_are_those_of_the_plain_run(tokens: Path, tmp_path: Path, alone: DistContext, zero: int) -> None:
    runs = [
        make(tokens, tmp_path / name, steps=6, model={"dropout": 0.1}, parallel=parallel)
        for name, parallel in (("plain", {}), ("offload", {"zero": zero, "cpu_offload": True}))
    ]
    for run in runs:
        train(run, alone)
    for key in ("loss", "grad_norm"):
        assert curve(runs[0].output, key) == curve(runs[1].output, key), key
