"""CPU offload: the device holds the root group and a block or two at a time, at every ZeRO stage; the numbers stay."""

import logging
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gpt2train.config import ParallelSettings, RunConfig
from gpt2train.data.batch import Batch
from gpt2train.errors import UserError
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.train import train
from gpt2train.training import offloaded_adamw
from gpt2train.training.engine import Engine
from gpt2train.training.offloaded_adamw import OffloadedAdamW
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


@pytest.mark.parametrize(("zero", "recompute"), [(0, "none"), (1, "full"), (2, "none"), (3, "full")])
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


def simulate_device(monkeypatch: pytest.MonkeyPatch, available: int, used: int = 0) -> None:
    """Let the engine see a device of this many bytes, some of them used by the first step."""
    monkeypatch.setattr(offloaded_adamw, "available_memory", lambda _: available)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: used)


def test_the_optimizer_alone_is_on_the_cpu(tmp_path: Path, alone: DistContext) -> None:
    engine = Engine(config(tmp_path, cpu_offload=True, offload_placement="optimizer"), alone)
    optimizer = engine.optimizer
    assert isinstance(optimizer, OffloadedAdamW) and optimizer.resident == ()
    assert not any(isinstance(block, FSDPModule) for block in engine.model_parts[0].blocks.values())
    names = [name for name, _ in engine.model_parts[0].named_parameters()]
    assert list(optimizer.state()) == [f"{name}.{key}" for name in names for key in ("exp_avg", "exp_avg_sq", "step")]
    engine.fill_device()  # is for the automatic placement
    assert optimizer.resident == ()


def test_auto_placement_fills_the_device(tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and gradients of 91,264 parameters take 730 KB."""
    run = config(tmp_path, cpu_offload=True, offload_placement="auto")
    count = sum(parameter.numel() for parameter in Engine(run, alone).parameters())
    for available, expected in ((8 * count, "all"), (12 * count, "auto")):
        simulate_device(monkeypatch, available)
        engine = Engine(run, alone)
        assert engine.parallel.offload_placement == expected
    assert isinstance(engine.optimizer, OffloadedAdamW)
    engine.accumulate(batches(), 96, 1)
    stats = engine.measure(torch.zeros(()), 96, 1.0, False)
    engine.update(stats, 1e-3)
    before = {key: value.clone() for key, value in engine.optimizer.state().items()}
    simulate_device(monkeypatch, 4 * count)
    engine.fill_device()
    sizes = {name: 8 * parameter.numel() for name, parameter in engine.optimizer.named}
    resident = sum(sizes[name] for name in engine.optimizer.resident)
    room = int(4 * count * (1 - offloaded_adamw.RESERVE))
    others = [size for name, size in sizes.items() if name not in engine.optimizer.resident]
    assert room - min(others) < resident <= room  # nothing more fits
    after = engine.optimizer.state()
    assert list(after) == list(before) and all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize(
    ("placement", "used"),
    [
        pytest.param("optimizer", None, marks=pytest.mark.exhaustive, id="optimizer"),
        pytest.param("auto", None, marks=pytest.mark.exhaustive, id="all"),
        pytest.param("auto", 250_000, id="part"),
    ],
)
def test_every_placement_computes_the_same(
    tokens: Path,
    tmp_path: Path,
    alone: DistContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    placement: str,
    used: int | None,
) -> None:
    """And a checkpoint of one goes on in another. The state of 38,272 parameters takes 306 KB."""
    plain = make(tokens, tmp_path / "plain", steps=6, model={"dropout": 0.1})
    train(plain, alone)
    if used is not None:
        simulate_device(monkeypatch, 500_000, used)
    parallel = {"cpu_offload": True, "offload_placement": placement}
    half = make(tokens, tmp_path / "run", steps=6, model={"dropout": 0.1}, parallel=parallel)
    with caplog.at_level(logging.INFO, logger="gpt2train"):
        train(half, alone)
    said = re.findall(r"optimizer state of (\d+) of (\d+) tensors is on the device", caplog.text)
    assert len(said) == (placement == "auto")
    assert all((part == whole) == (used is None) and int(part) > 0 for part, whole in said)
    for key in ("loss", "grad_norm"):
        assert curve(half.output, key) == curve(plain.output, key), key
    changes: Any = {"steps": 8, "model": {"dropout": 0.1}, "schedule": {"decay_steps": 6}}
    train(make(tokens, tmp_path / "run", **changes), alone)
    train(make(tokens, tmp_path / "plain", **changes, parallel=parallel), alone)
    assert curve(half.output) == curve(plain.output) and len(curve(plain.output)) == 8


def test_a_placement_without_offload_is_refused() -> None:
    with pytest.raises(UserError, match="offload_placement 'auto' needs cpu_offload = true"):
        build(ParallelSettings, {"offload_placement": "auto"})
