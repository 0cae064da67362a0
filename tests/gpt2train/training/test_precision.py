"""Products in 16 and 8 bits and on Apple's MPS: dtypes, training that follows fp32, resuming, what cannot run."""

import dataclasses
import itertools
import logging
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu import tiny
from benchmarks.gpu.tiny import engine_of, losses, twin
from gpt2train.config import PerformanceSettings, RunConfig, TrainSettings, to_toml
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.data.batch import Batch
from gpt2train.errors import UserError
from gpt2train.inference.settings import SamplingSettings
from gpt2train.model import classification
from gpt2train.model.causal_lm import build_model
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel import grad_norm
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build, layer
from gpt2train.store.run_folder import list_checkpoints
from gpt2train.train import train
from gpt2train.training import adamw, engine
from gpt2train.training.engine import Engine
from gpt2train.training.performance import check_fp8
from tests.gpt2train.jobs import curve, make, weights
from tests.gpt2train.models import generate_tokens

SHAPE = Shape(vocab=200, layers=2, heads=2, hidden=16, context=8)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_matrix_products_are_in_half_precision_and_the_rest_in_float32(half: torch.dtype) -> None:
    model = initialise(GPT2(SHAPE), 1)
    seen: dict[str, set[torch.dtype]] = {"products": set(), "norms": set(), "residual": set()}

    def note(kind: str) -> Any:
        return lambda module, inputs, output: seen[kind].add(output.dtype)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(note("products"))
        elif isinstance(module, nn.LayerNorm):
            module.register_forward_hook(note("norms"))
        elif name.startswith("blocks.") and name.count(".") == 1:
            module.register_forward_hook(note("residual"))
    batch = torch.randint(SHAPE.vocab, (2, 9), generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # gradients are added up over micro-batches
        with torch.autocast("cpu", dtype=half):
            loss = model(batch[:, :-1], batch[:, 1:])
        (loss * 0.1).backward()
    assert seen == {"products": {half}, "norms": {torch.float32}, "residual": {torch.float32}}
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters() if p.grad is not None}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_stream_in_half_precision_has_the_same_loss_and_gradients_but_for_rounding(family: str) -> None:
    shape = complete_shape(Shape(200, 2, 2, 16, 8, family=family)) if family == "llama" else SHAPE
    batch = torch.randint(shape.vocab, (2, 9), generator=torch.Generator().manual_seed(0))
    found = {}
    for stream in (None, torch.bfloat16):
        model = initialise(build_model(shape), 1)
        model.stream, seen = stream, set()
        for block in model.blocks.values():
            block.register_forward_hook(lambda module, inputs, output, seen=seen: seen.add(output.dtype))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        assert seen == {stream or torch.float32}
        found[stream] = loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    (loss, gradient), (other, rounded) = found.values()
    assert 0 < abs(other / loss - 1) < 1e-3
    assert torch.linalg.vector_norm(rounded - gradient) < 0.02 * torch.linalg.vector_norm(gradient)


def relative(ours: Path, theirs: Path) -> Tensor:
    return torch.tensor(np.abs(np.array(curve(ours)) / np.array(curve(theirs)) - 1))


@pytest.mark.slow
def test_half_precision_trains_like_float32(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    for kind in ("fp32", "bf16", "fp16"):
        train(make(tokens, tmp_path / kind, precision=kind, batch={"micro_batch": 4}), alone)
    assert relative(tmp_path / "bf16", tmp_path / "fp32").max() < 1e-2
    assert 0 < relative(tmp_path / "fp16", tmp_path / "fp32").max() < 2e-3
    rows = read_metrics(tmp_path / "fp16")
    assert {row["loss_scale"] for row in rows} == {65536.0} and rows[-1]["skipped"] == 0


def test_a_spike_is_skipped_and_the_run_resumes_bit_for_bit(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    spikes = {"threshold_sigma": 1.5, "window": 8}
    config = make(tokens, tmp_path / "run", spikes=spikes, checkpoints={"interval": 6, "keep": 9})
    train(config, alone)
    rows = read_metrics(config.output)
    assert 0 < rows[-1]["skipped"] < 10
    assert all((b["lr"] == 0) == (b["skipped"] > a["skipped"]) for a, b in itertools.pairwise(rows))
    curve_before = curve(config.output)
    for checkpoint in list_checkpoints(config.output)[1:]:
        shutil.rmtree(checkpoint)
    train(config, alone)
    assert curve(config.output) == curve_before


@pytest.mark.slow
def test_a_ramp_up_and_a_warmup_in_tokens_work_together(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    batch = {"micro_batch": 2, "global_batch": 8, "ramp_up": {"start": 2, "increment": 2, "samples": 24}}
    schedule = {"kind": "wsd", "warmup": 0, "warmup_tokens": 16 * 16, "decay_fraction": 0.5}
    config = make(tokens, tmp_path / "run", batch=batch, schedule=schedule, steps=12)
    position = train(config, alone)
    # 4 steps of 2 samples, 2 of 4, 2 of 6 (8, 16 and 28 samples), then 8.
    seen = [row["tokens"] // 16 for row in read_metrics(config.output)]
    assert seen == [2, 4, 6, 8, 12, 16, 22, 28, 36, 44, 52, 60]
    assert position.samples == 60
    rates = curve(config.output, "lr")
    assert rates.index(max(rates)) == 6 and rates[-1] == pytest.approx(1e-3)


ONCE: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"model": {"family": "llama"}},
    "recomputed": {"parallel": {"activation_checkpointing": "full"}},
    "fp16": {"precision": "fp16"},
}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, alone: DistContext) -> None:
    monkeypatch.setattr(tiny, "context", lambda: alone)


@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ONCE if n != "llama")])
def test_weights_cast_once_a_step_change_no_number(group: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = twin(None, {"precision": "bf16", "batch": {"micro_batch": 2, "global_batch": 8}} | ONCE[name])
    found = []
    for once in (False, True):
        monkeypatch.setattr(engine, "casts_once", lambda config, device, once=once: once)
        found.append(losses(config, "cpu", 4))
    assert found[0] == found[1]


def test_callbacks_see_the_weights_in_float32(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "casts_once", lambda config, device: True)
    with engine_of(twin(None, {"precision": "bf16"}), "cpu") as made:
        kinds = {parameter.dtype for parameter in made.parameters()}
        assert kinds == {torch.float32} and made._half is not None
        with made._half.in_place():
            assert {parameter.dtype for parameter in made.parameters()} == {torch.float32, torch.bfloat16}
        assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}


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
        apart = np.abs(np.array(curve(ours.output)) / np.array(curve(half.output)) - 1)
        assert 0 < np.max(apart) < 2e-3  # measured: 5e-4
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


MPS_SMALL: dict[str, Any] = {
    "model": {"layers": 2, "heads": 2, "hidden": 32, "context": 16},
    "batch": {"micro_batch": 2, "global_batch": 4},
    "precision": "fp32",
    "steps": 4,
    "validation": {"interval": 2},
}
needs_mps = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs a GPU of Apple (MPS)")


class NoFloat64(TorchDispatchMode):
    """Refuse operations with results in float64, which raise on MPS."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(isinstance(each, Tensor) and each.dtype == torch.float64 for each in tree_leaves(out)):
            raise AssertionError(f"{func} in float64")
        return out


def mps_losses(folder: Path) -> np.ndarray:
    return np.array(curve(str(folder)))


def test_a_run_without_float64_and_a_fused_optimizer_has_the_same_losses(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(tokens, tmp_path / "usual", **MPS_SMALL), alone)
    with pytest.raises(AssertionError, match="float64"), NoFloat64():
        train(make(tokens, tmp_path / "refused", **MPS_SMALL), alone)
    for module in (classification, engine, grad_norm):
        monkeypatch.setattr(module, "sum_dtype", lambda device: torch.float32)
    monkeypatch.setattr(adamw, "FUSED", ())
    with NoFloat64():
        train(make(tokens, tmp_path / "mps", **MPS_SMALL), alone)
    np.testing.assert_allclose(mps_losses(tmp_path / "mps"), mps_losses(tmp_path / "usual"), rtol=1e-5)


@needs_mps
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_mps_has_losses_and_texts_of_the_cpu(precision: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    settings = {**MPS_SMALL, "precision": precision, "steps": 8}
    train(make(tokens, tmp_path / "cpu", **settings), alone)
    train(make(tokens, tmp_path / "mps", **settings), dataclasses.replace(alone, device=torch.device("mps")))
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    np.testing.assert_allclose(mps_losses(tmp_path / "mps"), mps_losses(tmp_path / "cpu"), rtol=tolerance)
    if precision != "fp32":
        return
    merge(tmp_path / "mps", tmp_path / "model")
    greedy = SamplingSettings(temperature=0, max_new_tokens=8)
    cpu, mps = (
        generate_tokens(read_model(tmp_path / "model", kind), [[1, 2, 3]], None, greedy) for kind in ("cpu", "mps")
    )
    assert cpu == mps
