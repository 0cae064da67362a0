"""Heads that the tensor-parallel degree does not divide, against the plain model; run by `run_cases.py`."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from gpt2train.config import ParallelSettings
from gpt2train.model.causal_lm import Shape, build_model
from gpt2train.model.families import MODELS
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE
from gpt2train.parallel.fsdp import accumulate, init_weights, shard
from gpt2train.parallel.grad_norm import align_grad_placements
from gpt2train.parallel.mesh import REPLICATE, SHARD, TENSOR
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from tests.gpt2train.parallel.tensor_cases import gap, gather, mesh_of, noisy, off, seed_dropout, whole

CONTEXT, DECODER_CONTEXT, ROWS = 16, 8, 4


def shape_of(family: str, heads: int, kv_heads: int = 0) -> Shape:
    """Shape with heads of 8 numbers, and everything that an attention can have."""
    options: dict[str, Any] = {
        "gpt2": {},
        "llama": {"kv_heads": kv_heads, "inner": 64, "qk_norm": True, "attention_bias": "all", "value_embeddings": 1},
        "t5": {"encoder_layers": 1, "decoder_context": DECODER_CONTEXT, "buckets": 8, "max_distance": 16},
    }[family]
    shape = Shape(299, 2, heads, 8 * heads, CONTEXT, family, tuple(options.items()))
    return MODELS[family].complete(shape)


def batch(shape: Shape, rows: int = ROWS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    length = DECODER_CONTEXT if shape.family == "t5" else CONTEXT
    found = {name: torch.randint(0, 299, (rows, CONTEXT), generator=generator) for name in ("tokens", "targets")}
    found["targets"] = found["targets"][:, :length].clone()
    found["targets"][0, 3] = IGNORE
    if shape.family == "t5":
        found["decoder_tokens"] = torch.randint(0, 299, (rows, length), generator=generator)
    return found


def equal(family: str, heads: int, kv_heads: int, tp: int, sequence: bool) -> dict[str, Any]:
    shape = shape_of(family, heads, kv_heads)
    plain, model, mesh = noisy(shape), noisy(shape), mesh_of(tp)[TENSOR]
    apply_tensor_parallel(model, mesh, sequence)
    given = batch(shape)
    loss, expected = model(**given), plain(**given)
    loss.backward()
    expected.backward()
    partial = [n for n, p in model.named_parameters() if p.grad.placements != p.placements]
    align_grad_placements(list(model.parameters()))
    del given["targets"]
    return {
        "logits": float((model(**given) - plain(**given)).detach().abs().max()),
        "loss": off(loss, expected),
        "partial": len(partial),
        "left partial": [n for n, p in model.named_parameters() if p.grad.placements != p.placements],
        "local": sum(p.to_local().numel() for p in model.parameters()),
        "gradient": gap(model, plain),
        "same loss": all(torch.equal(loss, other) for other in gather(loss.detach(), mesh)),
        "contiguous": all(p.grad.to_local().is_contiguous() for p in model.parameters()),
    }


def zero(family: str, heads: int, kv_heads: int, stage: int, sequence: bool) -> dict[str, Any]:
    """FSDP on top, from meta: two data-parallel processes of two, two micro-batches each."""
    shape, mesh = shape_of(family, heads, kv_heads), mesh_of(2, replicate=2 if stage == 0 else 1)
    with torch.device("meta"):
        model = build_model(shape)
    apply_tensor_parallel(model, mesh[TENSOR], sequence)
    shard(model, mesh, ParallelSettings(zero=stage))
    init_weights(model, torch.device("cpu"), 5)
    plain = initialise(build_model(shape), 5)
    first = all(torch.equal(whole(p), q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    given = batch(shape)
    plain(**given).backward()
    for turn in range(2):
        row = mesh[REPLICATE].get_local_rank() * 2 + mesh[SHARD].get_local_rank() * 2 + turn
        accumulate([model], stage, last=turn == 1)
        model(**{name: value[row : row + 1] for name, value in given.items()}).backward()
    return {
        "first values": first,
        "gradient": gap(model, plain),
        "left partial": [n for n, p in model.named_parameters() if p.grad.placements != p.placements],
    }


def half(
    family: str, heads: int, kv_heads: int, tp: int, sequence: bool = True, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """Half precision against the plain model in the same one and in fp32."""
    shape = shape_of(family, heads, kv_heads)
    plain, model, given = noisy(shape), noisy(shape), batch(shape)
    apply_tensor_parallel(model, mesh_of(tp)[TENSOR], sequence)
    exact = plain(**given)
    products: list[str] = []
    for one in (plain, model):
        one.blocks["0"].attn.proj.register_forward_hook(lambda _, x, y: products.append(str(y.dtype)))
    with torch.autocast("cpu", getattr(torch, dtype)):
        rough, ours = plain(**given), model(**given)
    ours.backward()
    return {
        "of plain": off(ours, rough),
        "of exact": off(ours, exact),
        "products": sorted(set(products)),
        "dtypes": sorted({str(p.grad.dtype) for p in model.parameters()} | {str(ours.dtype)}),
    }


def recomputed(family: str, heads: int, kv_heads: int, sequence: bool) -> dict[str, Any]:
    shape, gradients = shape_of(family, heads, kv_heads), []
    for saves in (False, True):
        model = noisy(shape, 0.5)
        apply_tensor_parallel(model, mesh_of(2)[TENSOR], sequence)
        for block in model.blocks.values():
            if saves:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        seed_dropout(1, sequence)
        model(**batch(shape)).backward()
        align_grad_placements(list(model.parameters()))
        gradients.append([p.grad.to_local() for p in model.parameters()])
    return {"same": all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))}


def compiled(
    family: str, heads: int, kv_heads: int, sequence: bool, rate: float = 0.0, half: bool = False
) -> dict[str, Any]:
    """Gradients with and without compiled blocks, and where a compiler had to give up."""
    shape, gradients = shape_of(family, heads, kv_heads), []
    torch._dynamo.reset()
    counters.clear()
    for compiles in (False, True):
        model = noisy(shape, rate)
        apply_tensor_parallel(model, mesh_of(2)[TENSOR], sequence)
        for block in model.blocks.values():
            if compiles:
                block.compile(backend="aot_eager")  # traces all, and leaves the numbers as they are
        seed_dropout(1, sequence)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(**batch(shape))
        loss.backward()
        align_grad_placements(list(model.parameters()))
        gradients.append([p.grad.to_local() for p in model.parameters()])
    return {
        "same": all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)),
        "gap": max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-6)) for a, b in zip(*gradients, strict=True)),
        "graphs": counters["stats"]["unique_graphs"],
        "gaps": [reason[:300] for reason in counters["graph_break"]],
    }
