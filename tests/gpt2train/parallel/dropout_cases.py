"""Cases that find the processes which drop the same elements; run by `run_cases.py`, judged by a test."""

from typing import Any

import torch
from torch import Tensor

from gpt2train.parallel.mesh import SHARD, TENSOR
from gpt2train.parallel.rng import dropout_seed
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from tests.gpt2train.parallel.tensor_cases import batch, gather, mesh_of, noisy, some_equal

RATE = 0.5


def seed_dropout(step: int, sequence: bool) -> None:
    """Seed dropout as the engine does: two data-parallel groups of two tensor-parallel processes."""
    mesh = mesh_of(2)
    tp = mesh[TENSOR].get_local_rank() if sequence else 0
    torch.manual_seed(dropout_seed(1, step, 0, mesh[SHARD].get_local_rank(), tp))


def masks(sequence: bool) -> dict[str, Any]:
    """Dropout masks of the attention of each process's heads, and of the residual stream.

    With queries and keys of 0 and values of 1, the output of attention is the share of tokens that were kept.
    """
    mesh, model = mesh_of(2), noisy(dropout=RATE)
    with torch.no_grad():
        for block in model.blocks.values():
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.view(-1, 3, block.attn.head_dim).copy_(torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1))
    apply_tensor_parallel(model, mesh[TENSOR], sequence)
    found: dict[str, list[Tensor]] = {"attention": [], "residual": [], "embedding": []}
    model.drop.register_forward_hook(lambda _, x, y: found["embedding"].append(y == 0))
    for block in model.blocks.values():
        block.attn.proj.register_forward_pre_hook(lambda _, x: found["attention"].append(x[0].detach()))
        block.drop.register_forward_hook(lambda _, x, y: found["residual"].append(y == 0))
    tokens, targets = batch(1)
    seen = []
    for step in (1, 1, 2):
        seed_dropout(step, sequence)
        model(tokens, targets)
        seen.append({key: torch.stack(list(map(torch.clone, values))) for key, values in found.items()})
        for values in found.values():
            values.clear()
    model.eval()
    model(tokens, targets)
    one, again, later = seen
    return {
        key: {
            "alike over tp": some_equal(one[key], mesh[TENSOR]),
            "alike over dp": some_equal(one[key], mesh[SHARD]),
            "alike over layers": len(one[key]) > 1 and torch.equal(one[key][0], one[key][1]),
            "again": torch.equal(one[key], again[key]),
            "later": torch.equal(one[key], later[key]),
            "at rest": bool((found[key][0] == (1 if key == "attention" else 0)).all()),
        }
        for key in found
    }


def kept_in_step() -> dict[str, Any]:
    mesh, model = mesh_of(2), noisy(dropout=RATE)
    apply_tensor_parallel(model, mesh[TENSOR], False)
    seed_dropout(1, False)
    model(*batch(1)).backward()
    own = [p.grad.to_local() for p in model.parameters() if p.placements[0].is_replicate()]
    return {
        "same": all(torch.equal(g, other) for g in own for other in gather(g, mesh[TENSOR])),
        "and after": not some_equal(torch.rand(4), mesh[SHARD]) and some_equal(torch.rand(4), mesh[TENSOR]),
    }
