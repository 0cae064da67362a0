"""Tensor parallelism against the plain model on four processes; run by `run_cases.py`."""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from benchmarks.peers import torch_tensor_parallel
from gpt2train.model.cache import Cache
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE, plain_cross_entropy
from gpt2train.parallel import vocab_parallel
from gpt2train.parallel.grad_norm import align_grad_placements
from gpt2train.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from gpt2train.parallel.tp_collectives import Region

# A vocabulary that 2 and 4 do not divide into whole parts before it is padded to 384.
SHAPE = Shape(vocab=299, layers=2, heads=4, hidden=32, context=16)
STEPS = 20


def noisy(dropout: float = 0.0, shape: Shape = SHAPE) -> GPT2:
    """A model whose biases and scales differ from 0 and 1, so that mix-ups are found."""
    model = initialise(GPT2(shape, dropout), 5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(seed: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Tokens and targets, one of which is ignored."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, SHAPE.vocab, (rows, SHAPE.context + 1), generator=generator)
    targets = samples[:, 1:].clone()
    targets[0, 3] = IGNORE
    return samples[:, :-1], targets


def mesh_of(tp: int, replicate: int = 1) -> DeviceMesh:
    """A mesh over the four processes, as the engine makes it."""
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
    """The tensors of all processes of the group."""
    parts = [torch.empty_like(x) for _ in range(mesh.size())]
    dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
    return parts


def some_equal(x: Tensor, mesh: DeviceMesh) -> bool:
    """True if any two processes of the group have equal tensors."""
    parts = gather(x, mesh)
    return any(torch.equal(a, b) for i, a in enumerate(parts) for b in parts[:i])


def equal(tp: int, sequence: bool) -> dict[str, Any]:
    """Differences of logits, loss and gradients, and placements of the parameters."""
    plain, model, mesh = noisy(), noisy(), mesh_of(tp)[TENSOR]
    apply_tensor_parallel(model, mesh, sequence)
    tokens, targets = batch(1)
    expected, loss = plain(tokens, targets), model(tokens, targets)
    expected.backward()
    loss.backward()
    partial = [n for n, p in model.named_parameters() if p.grad.placements != p.placements]
    align_grad_placements(list(model.parameters()))
    return {
        "logits": float((model(tokens) - plain(tokens)).detach().abs().max()),
        "loss": off(loss, expected),
        "same loss": all(torch.equal(loss, other) for other in gather(loss.detach(), mesh)),
        "gradient": gap(model, plain),
        "partial": partial,
        "left partial": [n for n, p in model.named_parameters() if p.grad.placements != p.placements],
        "local": sum(p.to_local().numel() for p in model.parameters()),
    }


def heads(tp: int) -> dict[str, Any]:
    """Local rows of the fused projection, compared with whole heads that are selected directly."""
    plain, model, mesh = noisy(), noisy(), mesh_of(tp)[TENSOR]
    apply_tensor_parallel(model, mesh, False)
    by_head = plain.blocks["0"].attn.qkv.weight.view(SHAPE.heads, 3, SHAPE.head_dim, SHAPE.hidden)
    mine = by_head.chunk(tp)[mesh.get_local_rank()].flatten(0, 2)
    return {"whole": torch.equal(model.blocks["0"].attn.qkv.weight.to_local(), mine)}


def steps(tp: int, sequence: bool) -> dict[str, Any]:
    """20 steps of AdamW with active clipping."""
    plain, model, mesh = noisy(), noisy(), mesh_of(tp)[TENSOR]
    apply_tensor_parallel(model, mesh, sequence)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (model, plain))
    worst = 0.0
    for step in range(STEPS):
        tokens, targets = batch(step % 4)
        count = targets.numel() - 1
        losses = []
        for m, optimizer in ((plain, theirs), (model, ours)):
            loss = m(tokens, targets) / count
            loss.backward()
            align_grad_placements(list(m.parameters())) if m is model else None
            nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        worst = max(worst, off(losses[1], losses[0]))
    kept = [p.to_local() for p in model.parameters() if p.placements[0].is_replicate()]
    return {
        "loss": worst,
        "last": losses[0].item(),
        "whole stay equal": all(torch.equal(p, other) for p in kept for other in gather(p.detach(), mesh)),
    }


def stock(tp: int) -> dict[str, Any]:
    """Torch's own plan for the same model, with its loss over a sharded vocabulary: an independent reference."""
    full = dataclasses.replace(SHAPE, vocab=SHAPE.padded_vocab)  # torch's loss knows of no padding
    other, model, mesh = noisy(shape=full), noisy(shape=full), mesh_of(tp)[TENSOR]
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
    """The loss of one soft cap and z-loss."""
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


def autocast(tp: int, sequence: bool, dtype: str) -> dict[str, Any]:
    """Half precision, against the plain model in the same one and in fp32."""
    plain, model = noisy(), noisy()
    apply_tensor_parallel(model, mesh_of(tp)[TENSOR], sequence)
    tokens, targets = batch(1)
    exact = plain(tokens, targets)
    products: list[str] = []
    for m in (plain, model):
        m.blocks["0"].attn.proj.register_forward_hook(lambda _, x, y: products.append(str(y.dtype)))
    with torch.autocast("cpu", getattr(torch, dtype)):
        rough, ours = plain(tokens, targets), model(tokens, targets)
    ours.backward()
    return {
        "of plain": off(ours, rough),
        "of exact": off(ours, exact),
        "products": products,
        "dtypes": sorted({str(p.grad.dtype) for p in model.parameters()} | {str(ours.dtype)}),
    }


def cache(tp: int) -> dict[str, Any]:
    """A prompt and then single tokens, as a served model computes them."""
    plain, model = noisy(), noisy()
    apply_tensor_parallel(model, mesh_of(tp)[TENSOR], False)
    tokens, _ = batch(2)
    heads = SHAPE.heads // tp
    kept = Cache(SHAPE.layers, heads, SHAPE.head_dim, len(tokens), SHAPE.context, torch.float32, tokens.device)
    with torch.inference_mode():
        seen = [model(tokens[:, :5], cache=kept.prefill([5] * len(tokens)))]
        for at in range(5, SHAPE.context):
            place = torch.full((len(tokens), 1), at)
            seen.append(model(tokens[:, at : at + 1], cache=kept.step(), positions=place))
        expected = plain(tokens)
    return {"logits": float((torch.cat(seen, 1) - expected).abs().max()), "heads": heads}


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


def stages(tp: int, sequence: bool) -> dict[str, Any]:
    """Two pipeline stages, each tensor-parallel: hidden states are passed on unchanged."""
    plain, mesh = noisy(), mesh_of(tp)[TENSOR]
    pieces = [noisy().keep_layers(layers) for layers in (range(0, 1), range(1, 2))]
    for piece in pieces:
        apply_tensor_parallel(piece, mesh, sequence)
    tokens, targets = batch(1)
    between = pieces[0](tokens)
    return {"loss": off(pieces[1](between, targets), plain(tokens, targets)), "length": between.shape[1]}


def alone() -> dict[str, Any]:
    """A group of one process: the model is unchanged."""
    model = noisy()
    kinds = [type(module) for module in model.modules()]
    apply_tensor_parallel(model, mesh_of(1)[TENSOR], True)
    same = kinds == [type(module) for module in model.modules()]
    return {"unchanged": same and not any(isinstance(p, DTensor) for p in model.parameters())}
