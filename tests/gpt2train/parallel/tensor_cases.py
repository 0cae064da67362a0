"""Tensor parallelism, also of heads that it does not divide, against the plain model; run by `run_cases.py`."""

import dataclasses
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from benchmarks.peers import torch_tensor_parallel
from gpt2train.config import ParallelSettings
from gpt2train.model.causal_lm import CausalLM, Shape, build_model
from gpt2train.model.families import MODELS
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE
from gpt2train.parallel import vocab_parallel
from gpt2train.parallel.fsdp import accumulate, init_weights, shard
from gpt2train.parallel.grad_norm import align_grad_placements
from gpt2train.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR
from gpt2train.parallel.rng import dropout_seed
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from gpt2train.parallel.tp_collectives import Region
from tests.gpt2train.models import lively, plain_cross_entropy

# A vocabulary that 2 and 4 do not divide into whole parts before it is padded to 384.
SHAPE = Shape(vocab=299, layers=2, heads=4, hidden=32, context=16)
CONTEXT, DECODER_CONTEXT, ROWS = 16, 8, 4


def noisy(shape: Shape = SHAPE, dropout: float = 0.0) -> CausalLM:
    """A model whose biases and scales differ from 0 and 1, so that mix-ups are found."""
    return lively(shape, 5, 0.1, dropout).requires_grad_().train()


def batch(seed: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, SHAPE.vocab, (rows, SHAPE.context + 1), generator=generator)
    targets = samples[:, 1:].clone()
    targets[0, 3] = IGNORE
    return samples[:, :-1], targets


def mesh_of(tp: int, replicate: int = 1) -> DeviceMesh:
    sizes = (1, replicate, dist.get_world_size() // tp // replicate, tp)
    return init_device_mesh("cpu", sizes, mesh_dim_names=(PIPELINE, REPLICATE, SHARD, TENSOR))


def gap(model: nn.Module, plain: nn.Module) -> float:
    """Largest relative difference of a gradient, with a floor, since the gradient of a key's bias is 0."""
    ours, theirs = dict(model.named_parameters()), dict(plain.named_parameters())
    assert list(ours) == list(theirs)
    top = max(p.grad.abs().max() for p in theirs.values())
    return max(
        float((whole(ours[n].grad) - p.grad).abs().max() / p.grad.abs().max().clamp_min(1e-3 * top))
        for n, p in theirs.items()
    )


def off(x: Tensor, y: Tensor) -> float:
    """Relative difference of two losses, the largest of their terms."""
    return float((x.detach() / y.detach() - 1).abs().max())


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def gather(x: Tensor, mesh: DeviceMesh) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(mesh.size())]
    dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
    return parts


def some_equal(x: Tensor, mesh: DeviceMesh) -> bool:
    parts = gather(x, mesh)
    return any(torch.equal(a, b) for i, a in enumerate(parts) for b in parts[:i])


def stock(tp: int) -> dict[str, Any]:
    """Torch's own plan for the same model, with its loss over a sharded vocabulary: an independent reference."""
    full = dataclasses.replace(SHAPE, vocab=SHAPE.padded_vocab)  # torch's loss knows of no padding
    other, model, mesh = noisy(full), noisy(full), mesh_of(tp)[TENSOR]
    torch_tensor_parallel.parallelize(other, mesh)
    apply_tensor_parallel(model, mesh, False)
    tokens, targets = batch(1)
    model(tokens, targets).backward()
    torch_tensor_parallel.backward(other, tokens, targets)
    for parameter in other.parameters():
        parameter.grad = whole(parameter.grad)
    return {"gradient": gap(model, other)}


def loss(tp: int) -> dict[str, Any]:
    """The loss alone: several chunks, large logits, targets at the borders of shards, some of them ignored."""
    capped = {f"{key}, capped": value for key, value in loss_of(tp, softcap=30.0, z_loss=0.01).items()}
    return loss_of(tp) | capped


def loss_of(tp: int, **terms: float) -> dict[str, Any]:
    mesh = mesh_of(tp)[TENSOR]
    region, generator = Region(mesh, False), torch.Generator().manual_seed(3)
    rows = 256 * tp + 77
    vocab = 64 - 21  # the rest is padding; the last of four processes has nothing else
    hidden = (torch.randn(rows, 16, generator=generator) * 20).requires_grad_()
    weight = torch.randn(64, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    targets[:6] = torch.tensor([0, 64 // tp - 1, 64 // tp, vocab - 1, IGNORE, IGNORE])
    part = weight.detach().chunk(tp)[mesh.get_local_rank()].clone().requires_grad_()
    entered = hidden.detach().clone().requires_grad_()
    value = vocab_parallel.cross_entropy(region.enter(entered), part, targets, region, vocab, **terms)
    (value * 0.5).sum().backward()
    expected = plain_cross_entropy(hidden, weight, targets, vocab, **terms)
    (expected * 0.5).sum().backward()
    mine = weight.grad.chunk(tp)[mesh.get_local_rank()]
    with torch.no_grad():
        again = vocab_parallel.cross_entropy(hidden, part, targets, region, vocab, **terms)
    return {
        "loss": off(value, expected),
        "without gradient": torch.equal(again, value.detach()),
        "hidden": float((entered.grad - hidden.grad).abs().max() / hidden.grad.abs().max()),
        "weight": float((part.grad - mine).abs().max() / weight.grad.abs().max()),
    }


def documents(tp: int, sequence: bool) -> dict[str, Any]:
    """Samples of several documents: positions restart, attention stays within each."""
    plain, model = noisy(), noisy()
    apply_tensor_parallel(model, mesh_of(tp)[TENSOR], sequence)
    tokens, targets = batch(1)
    length = torch.arange(SHAPE.context)
    starts = torch.tensor([0, 5, 7, 12]).unsqueeze(1)  # of the second document of each sample
    more = {"documents": (length >= starts).long(), "positions": length - starts * (length >= starts)}
    loss, expected = model(tokens, targets, **more), plain(tokens, targets, **more)
    loss.backward()
    expected.backward()
    align_grad_placements(list(model.parameters()))
    unmasked = plain(tokens, targets)
    return {"loss": off(loss, expected), "gradient": gap(model, plain), "unmasked": off(unmasked, expected)}


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


def shape_of(family: str, heads: int, kv_heads: int = 0) -> Shape:
    """Shape with heads of 8 numbers, and everything that an attention can have."""
    options: dict[str, Any] = {
        "gpt2": {},
        "llama": {"kv_heads": kv_heads, "inner": 64, "qk_norm": True, "attention_bias": "all", "value_embeddings": 1},
        "t5": {"encoder_layers": 1, "decoder_context": DECODER_CONTEXT, "buckets": 8, "max_distance": 16},
    }[family]
    shape = Shape(299, 2, heads, 8 * heads, CONTEXT, family, tuple(options.items()))
    return MODELS[family].complete(shape)


def uneven_batch(shape: Shape, rows: int = ROWS) -> dict[str, Tensor]:
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
    given = uneven_batch(shape)
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
    given = uneven_batch(shape)
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
    plain, model, given = noisy(shape), noisy(shape), uneven_batch(shape)
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
        model(**uneven_batch(shape)).backward()
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
            loss = model(**uneven_batch(shape))
        loss.backward()
        align_grad_placements(list(model.parameters()))
        gradients.append([p.grad.to_local() for p in model.parameters()])
    return {
        "same": all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)),
        "gap": max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-6)) for a, b in zip(*gradients, strict=True)),
        "graphs": counters["stats"]["unique_graphs"],
        "gaps": [reason[:300] for reason in counters["graph_break"]],
    }
