"""Training with products in 8 bits: close to bf16, resumed bit for bit, and refused where it cannot run."""

import logging
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpt2train.config import PerformanceSettings, RunConfig, TrainSettings, to_toml
from gpt2train.data.batch import Batch
from gpt2train.errors import UserError
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build, layer
from gpt2train.store.run_folder import list_checkpoints
from gpt2train.train import train
from gpt2train.training.engine import Engine
from gpt2train.training.performance import check_fp8
from tests.gpt2train.jobs import curve, make, weights

RECIPES = ("tensorwise", "rowwise")
BASE: dict[str, Any] = {
    "model": {"layers": 2, "heads": 4, "hidden": 64, "context": 16},
    "precision": "bf16",
    "optimizer": {"lr": 2e-3, "max_grad_norm": 0.5},
}


# Some CPUs have no better than torch's reference for such products: 60 ns for one multiplication.
SMALL: dict[str, Any] = {
    "model": {"heads": 2, "hidden": 32},
    "batch": {"micro_batch": 1, "global_batch": 2},
    "steps": 8,
}


def run(tokens: Path, output: Path, fp8: str, **changes: Any) -> RunConfig:
    return make(tokens, output, **layer(BASE, {"performance": {"fp8": fp8}}, changes))


def apart(ours: RunConfig, other: RunConfig) -> float:
    """The largest relative difference of a loss."""
    return float(np.max(np.abs(np.array(curve(ours.output)) / np.array(curve(other.output)) - 1)))


@pytest.mark.slow
def test_training_is_close_to_bf16_also_with_recomputation(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    half = run(tokens, tmp_path / "off", "off", **SMALL)
    train(half, alone)
    assert "fp8" not in to_toml(half)
    for fp8 in RECIPES:
        ours = run(tokens, tmp_path / fp8, fp8, **SMALL)
        recomputed = {"activation_checkpointing": "selective"}
        selective = run(tokens, tmp_path / f"{fp8}-selective", fp8, parallel=recomputed, **SMALL)
        for config in (ours, selective):
            train(config, alone)
        assert 0 < apart(ours, half) < 2e-3  # measured: 5e-4
        assert curve(selective.output) == curve(ours.output)
        assert {weight.dtype for weight in weights(ours.output).values()} == {torch.float32}


def test_a_run_resumes_bit_for_bit_and_goes_on_without_fp8(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    small = {**SMALL, "checkpoints": {"interval": 2, "keep": 9}, "steps": 6}
    config = run(tokens, tmp_path / "run", "tensorwise", **small | {"steps": 4})
    train(config, alone)
    losses, after = curve(config.output), weights(config.output)
    shutil.rmtree(list_checkpoints(config.output)[-1])
    train(config, alone)
    assert curve(config.output) == losses
    assert all(torch.equal(weights(config.output)[name], value) for name, value in after.items())
    with caplog.at_level(logging.INFO, "gpt2train"):
        train(run(tokens, tmp_path / "run", "off", **small | {"steps": 5}), alone)
        train(run(tokens, tmp_path / "run", "rowwise", **small), alone)
    assert "changed setting: performance.fp8 from tensorwise to off" in caplog.messages
    assert "changed setting: performance.fp8 from off to rowwise" in caplog.messages
    assert any("slower than bf16 on a CPU" in message for message in caplog.messages)
    assert len(curve(config.output)) == 6


@pytest.mark.parametrize("fp8", ["off", *RECIPES])
def test_a_gradient_with_nan_is_skipped_as_in_bf16(fp8: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    engine = Engine(run(tokens, tmp_path, fp8), alone)
    block: Any = engine.model_parts[0].blocks["1"]

    def spoil(module: Any, inputs: Any, output: Tensor) -> None:
        def one(grad: Tensor) -> Tensor:
            grad = grad.clone()
            grad.view(-1)[7] = math.nan
            return grad

        output.register_hook(one)

    x = torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(0))
    before = [parameter.detach().clone() for parameter in engine.parameters()]
    handle = block.up.register_forward_hook(spoil)
    for bad in (True, False):
        stats = engine.measure(engine.accumulate([Batch(x[:, :-1], x[:, 1:])], 32, 1), 32, 1.0, stop=False)
        assert math.isnan(stats.read().grad_norm) == bad and math.isfinite(stats.read().loss)
        engine.update(stats, 1e-3)
        equal = [torch.equal(a, b) for a, b in zip(before, engine.parameters(), strict=True)]
        assert all(equal) if bad else not any(equal)
        handle.remove()


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "precision": ({"precision": "fp16"}, 1, r"performance.fp8 'rowwise' needs precision bf16, not fp16; set precision"),
    "tokens": ({"model": {"context": 24}}, 1, r"1 x 24 tokens = 24; change batch.micro_batch, or set"),
    "width": ({"model": {"hidden": 72}}, 1, r"multiples of 16, but blocks.0.attn.qkv.weight has 216; change the"),
    "tp": ({"model": {"hidden": 32}, "parallel": {"tp": 4}}, 4, r"qkv.weight has 96 / parallel.tp 4 = 24; change the"),
    "heads": ({"model": {"hidden": 96, "heads": 12}, "parallel": {"tp": 8}}, 8, r"parallel.tp 8 splits whole heads of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_computed_is_refused_in_one_line(name: str) -> None:
    changes, world, message = WRONG[name]
    batch = {"micro_batch": 1, "global_batch": 8}
    plain = layer(BASE, {"batch": batch}, changes)
    with pytest.raises(UserError, match=message) as found:
        Layout.of(build(TrainSettings, layer(plain, {"performance": {"fp8": "rowwise"}})), world)
    assert "\n" not in str(found.value)
    if name != "precision":
        Layout.of(build(TrainSettings, plain), world)
    # Heads that tp does not divide are possible if they have a multiple of 16 numbers.
    wide = {"model": {"heads": 5, "hidden": 160}, "parallel": {"tp": 2}, "performance": {"fp8": "tensorwise"}}
    assert Layout.of(build(TrainSettings, layer(BASE, {"batch": batch}, wide)), 2).tp == 2


def test_a_gpu_without_such_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device, settings = torch.device("cuda", 0), PerformanceSettings(fp8="tensorwise")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        check_fp8(PerformanceSettings(), device)
        if capability >= (8, 9):
            check_fp8(settings, device)
        else:
            with pytest.raises(UserError, match=re.escape("capability 8.9 or newer, which NVIDIA A100 is not; set")):
                check_fp8(settings, device)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UserError, match="needs an NVIDIA GPU"):
        check_fp8(settings, device)
    check_fp8(settings, torch.device("cpu"))
