"""Tiny twins of the presets, and their training on random tokens on one device."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from gpt2train.config import RunConfig, preset
from gpt2train.data.batch import Batch
from gpt2train.parallel.mesh import DistContext, join
from gpt2train.settings import build, layer
from gpt2train.training.engine import Engine
from gpt2train.training.performance import FP8_CAPABILITY, cudnn_is_wrong, fast_kernels

VOCAB, CONTEXT = 500, 64
STEPS = {"cpu": 2, "cuda": 6}  # of a comparison; a rehearsal on a CPU only runs the checks
LAYERS, HEADS, HEAD_DIM = 2, 4, 32  # a head of 32: every attention kernel supports it
LLAMA = {"family": "llama", "options": {"kv_heads": 2, "qk_norm": True}}
# Of a preset, what is not its size and does not need more processes, more memory or more steps.
KEPT = ("optimizer", "schedule", "documents", "scaler")


@cache
def context() -> DistContext:
    """Process group of this process, on the GPU if there is one."""
    return join("auto")


def on(device: str) -> DistContext:
    """The process group, computing on a device."""
    return replace(context(), device=torch.device("cpu") if device == "cpu" else context().device)


def has_fp8(device: str) -> bool:
    """True if a device multiplies in 8 bits."""
    return device == "cpu" or torch.cuda.get_device_capability() >= FP8_CAPABILITY


def twin(name: str | None = None, *changes: Mapping[str, Any], family: Mapping[str, Any] | None = None) -> RunConfig:
    """Settings of a tiny model with the optimizer and the documents of a preset; in float32, uncompiled."""
    given = {key: value for key, value in preset(name).items() if key in KEPT} if name else {}
    if "schedule" in given:
        given["schedule"] = {key: value for key, value in given["schedule"].items() if key in ("kind", "min_lr")}
    sizes = {"layers": LAYERS, "heads": HEADS, "hidden": HEADS * HEAD_DIM, "context": CONTEXT, "dropout": 0.0}
    base = {
        "model": sizes | dict(family or {}),
        "batch": {"micro_batch": 2, "global_batch": 4},
        "schedule": {"warmup": 0},
        "performance": {"compile": "off", "tf32": False},
        "precision": "fp32",
        "steps": STEPS["cuda"],
        "vocab": VOCAB,
        "data": {"train": "random tokens"},
        "output": "nowhere",
    }
    return build(RunConfig, layer(base, given, *changes))


def batches(config: RunConfig, step: int) -> list[Batch]:
    """Micro-batches of a step, the same on every device: each token follows from the one before, with noise."""
    generator = torch.Generator().manual_seed(step)
    size = (config.batch.sizes(1)[0], config.model.context + 1)
    found = []
    for _ in range(config.batch.sizes(1)[2]):
        tokens = (torch.randint(config.vocab, (size[0], 1), generator=generator)) + torch.randint(
            1, 4, size, generator=generator
        ).cumsum(1)
        tokens %= config.vocab
        extra = {}
        if config.documents.mask_documents:
            extra["documents"] = (torch.arange(size[1] - 1) > size[1] // 3).long().expand(size[0], -1).contiguous()
        found.append(Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), extra))
    return found


@contextlib.contextmanager
def engine_of(config: RunConfig, device: str) -> Iterator[Engine]:
    """Engine on a device, with its kernels preferred."""
    ctx = on(device)
    with fast_kernels(config.performance, ctx.device, cudnn_is_wrong(config, ctx.device)):
        yield Engine(config, ctx)
    if ctx.device.type == "cuda":
        torch.cuda.empty_cache()


def losses(config: RunConfig, device: str, steps: int) -> list[float]:
    """Loss of each step of a training; in fp16 with the loss scale 2^10."""
    scale = 2.0**10 if config.precision == "fp16" else 1.0
    found = []
    with engine_of(config, device) as engine:
        for step in range(1, steps + 1):
            micro = [batch.to(engine.ctx.device) for batch in batches(config, step)]
            tokens = sum(batch.targets.numel() for batch in micro)
            pending = engine.measure(engine.accumulate(micro, tokens, step, scale), tokens, scale, stop=False)
            engine.update(pending, config.optimizer.lr)
            found.append(pending.read().loss)
            if step == 1:
                engine.fill_device()
    return found


def gradients(config: RunConfig, device: str) -> torch.Tensor:
    """Gradients of the first step, all parameters behind each other, in float32 on the CPU."""
    with engine_of(config, device) as engine:
        micro = [batch.to(engine.ctx.device) for batch in batches(config, 1)]
        tokens = sum(batch.targets.numel() for batch in micro)
        pending = engine.measure(engine.accumulate(micro, tokens, 1, 1.0), tokens, 1.0, stop=False)
        return torch.cat([gradient.float().cpu().flatten() for gradient in pending.gradients])


def difference(one: list[float], other: list[float]) -> float:
    """Largest difference of two curves; NaN if one has a NaN."""
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)
