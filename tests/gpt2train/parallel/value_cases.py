"""An engine with value embeddings on a layout: losses of masked documents, and logits; run by `run_cases.py`."""

from typing import Any

import torch
import torch.distributed as dist

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.training.engine import Engine

SAMPLES, CONTEXT, VOCAB = 8, 16, 300
MODEL = {"family": "llama", "layers": 4, "heads": 6, "hidden": 48, "context": CONTEXT, "dropout": 0.0}
OPTIONS = {"value_embeddings": 2, "kv_heads": 3, "inner": 64}


def computed(parallel: dict[str, Any], precision: str) -> dict[str, Any]:
    """Results that do not depend on the layout: logits, and losses and gradient norm of a step of masked documents.

    Args:
        parallel: settings of the layout, without data parallelism.
        precision: precision of the products.
    """
    base = {
        "model": {**MODEL, "options": OPTIONS},
        "batch": {"micro_batch": 2, "global_batch": SAMPLES},
        "documents": {"mask_documents": True, "reset_positions": True},
        "parallel": parallel,
        "precision": precision,
        "device": "cpu",
        "vocab": VOCAB,
        "schedule": {"warmup": 1},
        "output": "none",
        "data": {"train": "none"},
    }
    engine = Engine(build(RunConfig, base), DistContext(dist.get_rank(), dist.get_world_size(), torch.device("cpu")))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB, (SAMPLES, CONTEXT + 1), generator=generator)
    documents = (torch.arange(CONTEXT) >= 6).long().expand(SAMPLES, CONTEXT)
    positions = torch.arange(CONTEXT).sub(6 * documents)
    rows = [slice(start, start + 2) for start in range(0, SAMPLES, 2)]
    batches = [
        Batch(tokens[own, :-1], tokens[own, 1:], {"documents": documents[own], "positions": positions[own]})
        for own in rows
    ]
    with engine.evaluating():
        logits = engine.logits(tokens[:1, :8])
    total = engine.accumulate(batches, SAMPLES * CONTEXT, 1)
    stats = engine.measure(total, SAMPLES * CONTEXT, 1.0, stop=False)
    found = stats.read()
    engine.update(stats, 1e-2)
    valid = engine.evaluate(batches)[0]
    values = None if logits is None else logits[0, :, :VOCAB].float().tolist()  # None without the head
    return {"loss": found.loss, "norm": found.grad_norm, "valid": valid, "logits": values}
