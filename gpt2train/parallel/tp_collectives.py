"""Collectives of tensor parallelism, as differentiable functions of plain local tensors.

Outside attention and MLP, activations are either replicated on every process of the group or, under sequence
parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation"), sliced along the sequence. Inside attention
and MLP each process has all tokens and a part of the width. Entering and leaving such a region are each other's
gradients:

    replicated activations  enter: identity     (gradient: all-reduce)      leave: all-reduce       (identity)
    sequence slices         enter: all-gather   (gradient: reduce-scatter)  leave: reduce-scatter   (all-gather)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

from gpt2train.compat.torch import all_gather_single, reduce_scatter_single
from gpt2train.compat.torch_compile import compiled_result
from gpt2train.model.device import product_dtype


class Region:
    """Tensor-parallel group of this process.

    With `sequence`, activations outside attention and MLP are slices of the sequence.
    """

    def __init__(self, mesh: DeviceMesh, sequence: bool) -> None:
        self.mesh, self.sequence = mesh, sequence
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def enter(self, x: Tensor) -> Tensor:
        """Enter attention or MLP: all tokens [batch, length, width] on every process, in the dtype of autocast.

        The products that follow compute in it anyway, and a norm's float32 output would be twice as long to send, as
        would its gradient.
        """
        x = x.to(product_dtype(x))
        return _Gather.apply(x, self) if self.sequence else _Copy.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """Leave attention or MLP: the sum of the partial results of all processes."""
        return _Scatter.apply(x, self) if self.sequence else _Reduce.apply(x, self)

    def share(self, x: Tensor) -> Tensor:
        """Return x itself for what all processes compute alike after they entered; its gradient is divided by them.

        The region sums the gradients of its processes where it was entered, and these are equal.
        """
        return _Share.apply(x, self)

    def slice(self, x: Tensor, dim: int) -> Tensor:
        """Slice of a replicated tensor for this process, under sequence parallelism."""
        return x.chunk(self.size, dim)[self.rank] if self.sequence else x

    def gather_columns(self, x: Tensor) -> Tensor:
        """Concatenate the columns of all processes: [..., width / size] to [..., width], replicated."""
        return _GatherColumns.apply(x, self)

    def all_gather(self, x: Tensor) -> Tensor:
        """Stack the tensors of all processes to [size, *shape]; not differentiable."""
        parts = x.new_empty(self.size * x.shape[0], *x.shape[1:])  # gloo supports no other form
        all_gather_single(parts, x.contiguous(), group=self.group)
        return parts.unflatten(0, (self.size, -1))

    def local(self, parameter: Tensor) -> Tensor:
        """Local part of a parameter, differentiable.

        A replicated parameter applied to a slice of the tokens gets a partial gradient on each process (`Partial`).
        FSDP sums it before it shards, once per step under ZeRO 0 and 1; without FSDP
        `gpt2train.parallel.grad_norm.align_grad_placements` sums it.
        """
        if self.sequence and isinstance(parameter, DTensor) and parameter.placements[0].is_replicate():
            return self.partial(parameter)
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter

    def partial(self, parameter: Tensor) -> Tensor:
        """Local part of a replicated parameter that each process applies to a part of the activations."""
        return parameter.to_local(grad_placements=[Partial()]) if isinstance(parameter, DTensor) else parameter


def _gather(x: Tensor, region: Region) -> Tensor:
    """Gather [batch, length / size, width] of all processes to [batch, length, width]."""
    return region.all_gather(x).transpose(0, 1).reshape(x.shape[0], -1, x.shape[2])


def _reduce_scatter_sequence(x: Tensor, region: Region) -> Tensor:
    """Sum [batch, length, width] over the processes; each gets its slice [batch, length / size, width]."""
    batch, length, width = x.shape
    parts = x.reshape(batch, region.size, length // region.size, width).transpose(0, 1).flatten(0, 1)
    own = parts.new_empty(batch, length // region.size, width)
    reduce_scatter_single(own, parts.contiguous(), group=region.group)
    return own


def _all_reduce(x: Tensor, region: Region) -> Tensor:
    """Sum over the processes, in place if the tensor is contiguous."""
    x = x.contiguous()
    dist.all_reduce(x, group=region.group)
    return x


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # In place: the gradient of a matrix product's input has no other references.
        return _all_reduce(grads[0], ctx.region), None


class _Share(_Copy):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] / ctx.region.size, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        if torch.compiler.is_compiling():
            return compiled_result(_all_reduce(x.clone(), region))
        # In place: a matrix product does not keep its output for the backward pass.
        dist.all_reduce(x, group=region.group)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return _gather(x, region)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter_sequence(grads[0], ctx.region), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return compiled_result(_reduce_scatter_sequence(x, region))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gather(grads[0], ctx.region), None


class _GatherColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return region.all_gather(x).movedim(0, -2).flatten(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].chunk(ctx.region.size, -1)[ctx.region.rank], None
