"""Half precision: dtypes of products and weights, weights cast once a step, and training that follows fp32."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu import tiny
from benchmarks.gpu.tiny import engine_of, losses, twin
from gpt2train.model.causal_lm import build_model
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import list_checkpoints
from gpt2train.train import train
from gpt2train.training import engine
from tests.gpt2train.jobs import curve, make

SHAPE = Shape(vocab=200, layers=2, heads=2, hidden=16, context=8)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_matrix_products_are_in_half_precision_and_the_rest_in_float32(half: torch.dtype) -> None:
    """Matrix products are in half precision; residual stream, LayerNorm, loss, weights and gradients in float32."""
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
    """Use the process group of the tests."""
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
