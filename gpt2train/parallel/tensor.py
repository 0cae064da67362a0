"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"), with sequence parallelism and a split vocabulary.

Parameters become DTensors on the tensor-parallel mesh, so that FSDP and checkpoints see how they lie; the forward
computes on their local parts with plain operators, which costs a third less CPU time per step than DTensor's own
dispatch. Every module stays itself, under its own name: it is given a subclass with another `forward`.

    wte, attn.qkv, up       cut by rows: part of the vocabulary, whole heads, part of the inner width
    attn.proj, down         cut by columns; their bias is whole and added once, to the sum
    wpe, norms              whole

Two communications a block and direction, at the norms and behind `proj` and `down`: `gpt2train.parallel.regions`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from gpt2train.model.gpt2 import GPT2, Attention
from gpt2train.parallel import vocabulary
from gpt2train.parallel.regions import Region
from gpt2train.parallel.rng import apart

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()


def apply_tensor_parallel(model: GPT2, mesh: DeviceMesh, sequence_parallel: bool) -> Region | None:
    """Cut a model over the processes of a tensor-parallel mesh, in place; it may be on meta, or one pipeline stage.

    Args:
        model: whole and equal on all processes, before FSDP, compilation and activation checkpointing.
        mesh: one dimension, whose size divides the heads and the padded vocabulary, and the context under sequence
            parallelism (`gpt2train.parallel.layout` refuses others).
        sequence_parallel: activations between the layers are slices of the sequence. Saves their memory at the price
            of nothing; the processes then need seeds of their own (`gpt2train.parallel.rng`).

    Returns:
        The group; None for a group of one, where nothing is changed.
    """
    if mesh.size() == 1:
        return None
    region = Region(mesh, sequence_parallel)
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            _become(module, _Norm, region, WHOLE, WHOLE)
        elif isinstance(module, nn.Linear):
            inwards = name.endswith((".proj", ".down"))
            _become(module, _RowLinear, region, COLUMNS, WHOLE) if inwards else _become(
                module, _ColumnLinear, region, ROWS, ROWS
            )
        elif isinstance(module, nn.Embedding):
            kind, placement = (_Tokens, ROWS) if name == "wte" else (_Positions, WHOLE)
            _become(module, kind, region, placement)
        elif isinstance(module, Attention) and module.dropout:
            module.forward = functools.partial(_attend, module, module.forward, region)  # type: ignore[method-assign]
    model.project = lambda x, weight: vocabulary.logits(x, region.local(weight), region)
    vocab = model.shape.vocab
    model.cross_entropy = lambda x, weight, targets: vocabulary.cross_entropy(
        x, region.local(weight), targets, region, vocab
    )
    return region


def _become(module: nn.Module, kind: type[nn.Module], region: Region, *placements: Placement) -> None:
    """Give a module its parallel class, and its parameters (weight, bias) their places."""
    for (name, parameter), placement in zip(list(module.named_parameters()), placements, strict=True):
        cut = distribute_tensor(parameter, region.mesh, [placement], src_data_rank=None)
        setattr(module, name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
    module.__class__ = kind
    module.region = region  # type: ignore[assignment]


class _Norm(nn.LayerNorm):
    """Where activations go into a layer, or into the output projection."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.region.local(self.weight), self.region.local(self.bias)
        return self.region.enter(F.layer_norm(x, self.normalized_shape, weight, bias, self.eps))


class _ColumnLinear(nn.Linear):
    """A part of the outputs; communicates nothing."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.region.local(self.weight), self.region.local(self.bias))


class _RowLinear(nn.Linear):
    """A part of the inputs; the sum over the processes leaves the layer."""

    region: Region

    def forward(self, x: Tensor) -> Tensor:
        x = self.region.leave(F.linear(x, self.region.local(self.weight)))
        return x + self.region.local(self.bias).to(x.dtype)


class _Tokens(nn.Embedding):
    region: Region

    def forward(self, tokens: Tensor) -> Tensor:
        return vocabulary.embed(tokens, self.region.local(self.weight), self.region)


class _Positions(nn.Embedding):
    """Positions come whole, and leave as this process's slice of the sequence."""

    region: Region

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(self.region.slice(positions, -1), self.region.local(self.weight))


def _attend(
    module: Attention, forward: Callable[..., Tensor], region: Region, x: Tensor, *rest: Any, **more: Any
) -> Tensor:
    """Attention whose dropout differs by process: each has other heads.

    Under sequence parallelism all that is dropped is a part, and the processes' seeds differ from the start.
    """
    if region.sequence or not module.training:
        return forward(x, *rest, **more)
    return _attend_apart(forward, region, x, *rest, **more)


@torch.compiler.disable
def _attend_apart(forward: Callable[..., Tensor], region: Region, x: Tensor, *rest: Any, **more: Any) -> Tensor:
    # A compiler cannot follow a change of the generator's state: here a compiled block has a gap.
    with apart(region.rank, x.device):
        return forward(x, *rest, **more)
