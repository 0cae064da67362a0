"""Program for torchrun: records the gradients of small models on layouts with a pipeline.

pipeline_cases.py FOLDER CASES.json, where the cases are a dict of name -> changed settings. Each rank writes
FOLDER/<name>-<rank>.pt.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.settings import build
from gpt2train.training.engine import Engine

VOCAB, CONTEXT, SAMPLES = 300, 16, 8


def settings(changes: dict[str, Any]) -> RunConfig:
    """A small run: 4 layers, 8 samples a step, clipping at work."""
    base = {
        "model": {"layers": 4, "heads": 2, "hidden": 32, "context": CONTEXT, "dropout": 0.0},
        "batch": {"micro_batch": 1, "global_batch": SAMPLES},
        "optimizer": {"lr": 3e-3, "max_grad_norm": 0.5},
        "precision": "fp32",
        "device": "cpu",
        "schedule": {"warmup": 3, "min_lr": 1e-3},
        "vocab": VOCAB,
        "output": "unused",
        "data": {"train": "unused"},
    }
    return build(RunConfig, base, changes)


def sample(number: int) -> Tensor:
    """Sample `number` of the run: each token follows from the one before, with noise."""
    generator = torch.Generator().manual_seed(number)
    steps = torch.randint(1, 4, (CONTEXT + 1,), generator=generator)
    return (torch.randint(VOCAB, (1,), generator=generator) + steps.cumsum(0)) % VOCAB


def batch(numbers: Sequence[int], documents: bool = False) -> Batch:
    tokens = torch.stack([sample(number) for number in numbers])
    targets = tokens[:, 1:].clone()
    targets[:, ::3] = -100
    places = torch.arange(CONTEXT).expand_as(targets)
    cuts = torch.tensor([[3 + number % 9] for number in numbers])
    second = (places >= cuts).long()
    extra = {"positions": places - second * cuts, "documents": second} if documents else {}
    return Batch(tokens[:, :-1], targets, extra)


def counted(numbers: range) -> int:
    return int((batch(numbers).targets != -100).sum())


def micro_batches(engine: Engine, numbers: range, documents: bool = False) -> list[Batch]:
    """This rank's share of some samples, as many micro-batches on every rank."""
    size, layout = engine.layout.micro_batch, engine.layout
    starts = range(engine.data_rank * size, len(numbers), size * layout.data)
    return [batch(numbers[start : start + size], documents) for start in starts]


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def gradients(engine: Engine, numbers: range, *, documents: bool = False, times: int = 1) -> dict[str, Tensor]:
    """Full gradients of the initial weights on some samples, the tied ones summed."""
    for _ in range(times):
        engine.accumulate(micro_batches(engine, numbers, documents), counted(numbers), 0)
    if engine.shared is not None:
        engine.shared.add_gradients()
    found = {name: whole(p.grad) for part in engine.model_parts for name, p in part.named_parameters()}
    for part in engine.model_parts:
        part.zero_grad(set_to_none=True)
    return found


def run(config: RunConfig) -> dict[str, Any]:
    engine = Engine(config, ctx)
    seen: dict[str, Any] = {}
    seen["gradients"] = gradients(engine, range(SAMPLES))
    seen["twice"] = gradients(engine, range(SAMPLES), times=2)
    seen["fewer"] = gradients(engine, range(SAMPLES // 2), documents=True)
    if engine.shared is not None:
        engine.shared.check()
    return seen


if __name__ == "__main__":
    follow_launcher()
    ctx = join("cpu")
    install_excepthook(ctx.rank, debug=True)
    folder = Path(sys.argv[1])
    for name, changes in json.loads(Path(sys.argv[2]).read_text()).items():
        seen = run(settings(changes))
        torch.save(seen, folder / f"{name}-{ctx.rank}.pt")
    dist.destroy_process_group()
