"""The borders of a tensor-parallel region, as differentiable functions of plain local tensors.

Between the blocks' layers activations lie in one of two ways: whole on every process of the group, or, under sequence
parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation"), each process with its slice of the
sequence. Inside attention and MLP each process has all tokens and a part of the width. One border in and one border
out, each the other's gradient:

    whole activations       enter: as it is     (gradient: summed)       leave: summed            (as it is)
    slices of the sequence  enter: gathered     (gradient: sum, sliced)  leave: sum, sliced       (gathered)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

# The names of torch 2.13, and what they were called before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Region:
    """One tensor-parallel group, seen from one of its processes.

    Args:
        mesh: the group, one dimension.
        sequence: whether activations outside attention and MLP are slices of the sequence. May be switched between
            forwards, all processes together: a single token that is generated cannot be sliced.
    """

    def __init__(self, mesh: DeviceMesh, sequence: bool) -> None:
        self.mesh, self.sequence = mesh, sequence
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def enter(self, x: Tensor) -> Tensor:
        """From between the layers into one: all tokens [batch, length, width], ready for a share of the work."""
        return _Gather.apply(x, self) if self.sequence else _Copy.apply(x, self)

    def leave(self, x: Tensor) -> Tensor:
        """From a layer back between them: the sum of every process's part of the result."""
        return _Scatter.apply(x, self) if self.sequence else _Reduce.apply(x, self)

    def slice(self, x: Tensor, dim: int) -> Tensor:
        """This process's slice of a tensor that all processes have."""
        return x.chunk(self.size, dim)[self.rank] if self.sequence else x

    def share(self, x: Tensor) -> Tensor:
        """Columns of every process side by side: [..., width / size] to [..., width], whole on all."""
        return _Share.apply(x, self)

    def everyone(self, x: Tensor) -> Tensor:
        """The tensors of all processes, [size, *shape]; not differentiable."""
        parts = x.new_empty(self.size * x.shape[0], *x.shape[1:])  # gloo knows no other form
        _all_gather(parts, x.contiguous(), group=self.group)
        return parts.unflatten(0, (self.size, -1))

    def local(self, parameter: Tensor) -> Tensor:
        """What this process has of a parameter, differentiable.

        A whole parameter that meets a slice of the tokens gets a part of its gradient on each process: `Partial`,
        which FSDP sums before it shards, once a step under ZeRO 0 and 1, and
        `gpt2train.parallel.norm.canonicalise` where there is no FSDP.
        """
        if not isinstance(parameter, DTensor):
            return parameter
        if self.sequence and parameter.placements[0].is_replicate():
            return parameter.to_local(grad_placements=[Partial()])
        return parameter.to_local()


def _gathered(x: Tensor, region: Region) -> Tensor:
    """[batch, length / size, width] of every process to [batch, length, width]."""
    return region.everyone(x).transpose(0, 1).reshape(x.shape[0], -1, x.shape[2])


def _scattered(x: Tensor, region: Region) -> Tensor:
    """The sum over the processes of [batch, length, width], and of it this process's [batch, length / size, width]."""
    batch, length, width = x.shape
    parts = x.reshape(batch, region.size, length // region.size, width).transpose(0, 1).flatten(0, 1)
    own = parts.new_empty(batch, length // region.size, width)
    _reduce_scatter(own, parts.contiguous(), group=region.group)
    return own


def _summed(x: Tensor, region: Region) -> Tensor:
    """The sum over the processes, in place where the tensor's memory allows."""
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
        # In place: what comes back is the gradient of a matrix product's input, which nobody else holds.
        return _summed(grads[0], ctx.region), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
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
        return _gathered(x, region)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _scattered(grads[0], ctx.region), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return _scattered(x, region)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gathered(grads[0], ctx.region), None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return region.everyone(x).movedim(0, -2).flatten(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].chunk(ctx.region.size, -1)[ctx.region.rank], None
