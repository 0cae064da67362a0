"""Bytes of the collectives of one step; run by `run_cases.py`."""

from typing import Any

import torch
import torch.distributed as dist

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model.shape import Shape
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.training.engine import Engine
from tests.gpt2train.parallel.collective_bytes import CollectiveBytes

HIDDEN, CONTEXT, MICRO_BATCH, ACCUMULATION = 64, 64, 2, 2
SHAPE = Shape(vocab=500, layers=1, heads=4, hidden=HIDDEN, context=CONTEXT)
ACTIVATION = HIDDEN * CONTEXT * MICRO_BATCH  # elements of a residual stream


def run(layers: int, precision: str, parallel: dict[str, Any]) -> RunConfig:
    """A run of two micro-batches a step on a data-parallel rank."""
    data = dist.get_world_size() // parallel.get("tp", 1) // parallel.get("pp", 1)
    base = {
        "model": {"layers": layers, "heads": SHAPE.heads, "hidden": HIDDEN, "context": CONTEXT, "dropout": 0.0},
        "batch": {"micro_batch": MICRO_BATCH, "global_batch": MICRO_BATCH * ACCUMULATION * data},
        "schedule": {"warmup": 1},
        "precision": precision,
        "device": "cpu",
        "vocab": SHAPE.vocab,
        "output": "none",
        "data": {"train": "none"},
        "parallel": parallel,
    }
    return build(RunConfig, base, {})


def volume(layers: int, precision: str, parallel: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a step by "operation dtype"."""
    config = run(layers, precision, parallel)
    engine = Engine(config, DistContext(dist.get_rank(), dist.get_world_size(), torch.device("cpu")))
    generator = torch.Generator().manual_seed(engine.data_rank)
    batches = []
    for _ in range(ACCUMULATION):
        tokens = torch.randint(config.vocab, (MICRO_BATCH, CONTEXT + 1), generator=generator)
        batches.append(Batch(tokens[:, :-1], tokens[:, 1:]))
    count = config.batch.global_batch * CONTEXT
    with CollectiveBytes() as counter:
        engine.accumulate(batches, count, 1)
    return {"bytes": {" ".join(key): size for key, size in sorted(counter.bytes.items())}}
