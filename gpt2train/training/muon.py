"""Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") for the matrices of the blocks.

A step of Muon replaces the momentum of a matrix, U S V^T, by about U V^T: all directions of a matrix learn at the same
rate. Embeddings, the output projection, norms and biases are left to AdamW. The update is scaled by
0.2 sqrt(max(rows, columns)), so that its root mean square is that of AdamW's and the same learning rate and weight
decay fit both (Liu et al. 2025, "Muon is Scalable for LLM Training").

A shard of a matrix cannot be orthogonalised alone. Each step gathers the momentum of every matrix once, over all its
shards, also those of tensor parallelism and ZeRO together; every process orthogonalises the whole and keeps its part.
Processes with the same shards (ZeRO 0, hybrid sharding) share the matrices out: each gathers and orthogonalises its own
ones, and sends the others the result. So the update is the same on every layout, and the communication that of AdamW
plus at most one all-gather of the matrices, in bfloat16 on a GPU. The products are 5 x 3, of a cost that does not
depend on the number of tokens: 0.5 % of a step's at 124M parameters and 524,288 tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from gpt2train.compat.torch import all_gather_single
from gpt2train.config import OptimizerSettings
from gpt2train.parallel.grad_norm import local, shard_count
from gpt2train.training.adamw import AdamW

ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan et al.: singular values end between 0.7 and 1.2
RMS = 0.2  # root mean square of AdamW's updates, by Liu et al.


class Muon:
    """Muon for the matrices of the blocks and AdamW for all other parameters.

    Args:
        named: pairs of name and parameter. Each parameter must have a gradient at every step.
        settings: optimizer settings.
        replicas: group of the processes that have the same shards and gradients; None for this process alone.
        shards: group of the processes whose shards make a matrix, by ZeRO's shard and then by tensor-parallel rank;
            None if not both of them split the matrices.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        settings: OptimizerSettings,
        replicas: dist.ProcessGroup | None = None,
        shards: dist.ProcessGroup | None = None,
    ) -> None:
        self.named = list(named)
        self._settings, self._shards = settings, shards
        self._is_matrix = [is_orthogonalised(name, parameter) for name, parameter in self.named]
        pairs = list(zip(self.named, self._is_matrix, strict=True))
        self._matrices = [pair for pair, matrix in pairs if matrix]
        self._replicas, count = replicas, 1 if replicas is None else replicas.size()
        self._replica = 0 if replicas is None else replicas.rank()
        parameters = [parameter for _, parameter in self._matrices]
        self._owners = share_out([tuple(parameter.shape) for parameter in parameters], count)
        owned = list(zip(parameters, self._owners, strict=True))
        self._shares = [[parameter for parameter, its in owned if its == owner] for owner in range(count)]
        self._momenta = [torch.zeros_like(parameter.detach()) for _, parameter in self._matrices]
        self._adamw = AdamW([pair for pair, matrix in pairs if not matrix], settings)
        self.device = self._adamw.device

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor], rate: Tensor, divisor: Tensor, skip: Tensor) -> None:
        """Apply one update, or skip it, without a host sync. Collective; arguments as of `AdamW.step`."""
        given = list(gradients)
        rest = [gradient for gradient, matrix in zip(given, self._is_matrix, strict=True) if not matrix]
        self._adamw.step(rest, rate, divisor, skip)
        matrices = [gradient for gradient, matrix in zip(given, self._is_matrix, strict=True) if matrix]
        keep = skip > 0
        beta, decay = self._settings.muon_momentum, self._settings.weight_decay

        def move(parameter: Tensor, direction: Tensor) -> None:
            shard, scale = local(parameter.detach()), RMS * max(parameter.shape) ** 0.5
            moved = shard * (1 - rate * decay) - rate * scale * direction.to(shard.dtype)
            shard.copy_(torch.where(keep, shard, moved))

        mine: list[Tensor] = []
        for (_, parameter), owner, momentum, gradient in zip(
            self._matrices, self._owners, self._momenta, matrices, strict=True
        ):
            held = local(momentum)
            gradient = gradient / divisor
            # A gradient that is not finite must not reach the state: `where`, since 0 x inf is NaN.
            held.copy_(torch.where(keep, held, held.lerp(gradient, 1 - beta)))
            if owner != self._replica:
                continue
            direction = orthogonalised(gradient.lerp(held, beta), parameter, self._shards)  # Nesterov
            if self._replicas is None:
                move(parameter, direction)
            else:
                mine.append(direction)
        if self._replicas is None:
            return
        for owner, parameters in enumerate(self._shares):
            if parameters:
                directions = broadcast(mine if owner == self._replica else None, parameters, self._replicas, owner)
                for parameter, direction in zip(parameters, directions, strict=True):
                    move(parameter, direction)

    def state(self) -> Mapping[str, Tensor]:
        """State by names that do not depend on the layout: `<name>.momentum`, and that of AdamW for the others."""
        found = {f"{name}.momentum": held for (name, _), held in zip(self._matrices, self._momenta, strict=True)}
        return found | dict(self._adamw.state())


def share_out(sizes: Sequence[tuple[int, ...]], processes: int) -> list[int]:
    """Assign matrices to processes, the most expensive first, each to the process with the least work so far.

    Returns:
        Process of each matrix.
    """
    costs = [rows * columns * min(rows, columns) for rows, columns in sizes]
    loads, owners = [0] * processes, [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):  # stable: equal on all processes
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += costs[index]
    return owners


def broadcast(
    directions: Sequence[Tensor] | None, parameters: Sequence[Tensor], replicas: dist.ProcessGroup, owner: int
) -> Sequence[Tensor]:
    """Send the orthogonalised matrices of one process to the others that have the same shards. Collective.

    `directions` are the parts of this process of the matrices; None if they belong to another process, `owner`.
    """
    shards = [local(parameter.detach()) for parameter in parameters]
    if directions is not None:
        flat = torch.cat([direction.flatten() for direction in directions])
    else:
        flat = shards[0].new_empty(sum(shard.numel() for shard in shards), dtype=precision_on(shards[0].device))
    dist.broadcast(flat, group=replicas, group_src=owner)
    pieces = flat.split([shard.numel() for shard in shards])
    return [piece.view_as(shard) for piece, shard in zip(pieces, shards, strict=True)]


def precision_on(device: torch.device) -> torch.dtype:
    """Dtype of the iteration on a device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def orthogonalised(update: Tensor, parameter: Tensor, shards: dist.ProcessGroup | None = None) -> Tensor:
    """Part of this process of an orthogonalised matrix, in the dtype of the iteration.

    The update is the local shard of a matrix with the placements of the parameter.
    """
    update = update.to(precision_on(update.device))
    if not isinstance(parameter, DTensor) or shard_count(parameter) == 1:
        return newton_schulz(update)
    mesh, placements = parameter.device_mesh, parameter.placements
    if shards is not None and shard_count(parameter) == shards.size():
        whole = gathered(update, parameter, shards)
    else:
        whole = DTensor.from_local(
            update, mesh, placements, shape=parameter.shape, stride=parameter.stride(), run_check=False
        ).full_tensor()
    return distribute_tensor(newton_schulz(whole), mesh, placements, src_data_rank=None).to_local()


def gathered(shard: Tensor, parameter: DTensor, shards: dist.ProcessGroup) -> Tensor:
    """Gather a matrix that tensor parallelism and ZeRO split, by one collective.

    DTensor gathers one dimension of the mesh after the other, which sends 1 + 1 / tp of the matrix.

    Args:
        shard: local shard: ZeRO splits the rows of what tensor parallelism leaves, as `torch.chunk` does.
        parameter: parameter whose placements it has, on a mesh whose last two dimensions are ZeRO's and tensor's.
        shards: as of `Muon`.
    """
    *_, split = parameter.placements
    dim, zero, tp = cast(Shard, split).dim, parameter.device_mesh.size(-2), parameter.device_mesh.size(-1)
    rows, columns = (size // tp if axis == dim else size for axis, size in enumerate(parameter.shape))
    largest = -(-rows // zero)
    padded = shard.new_zeros(largest, columns)
    padded[: shard.shape[0]] = shard
    every = shard.new_empty(zero * tp * largest, columns)
    all_gather_single(every, padded, group=shards)
    pieces = every.view(zero, tp, largest, columns).transpose(0, 1).reshape(tp, zero * largest, columns)
    return torch.cat(tuple(pieces[:, :rows]), dim)


def newton_schulz(matrix: Tensor) -> Tensor:
    """Replace all singular values of a matrix by values near 1, by Newton and Schulz's iteration of degree five."""
    a, b, c = COEFFICIENTS
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (torch.linalg.vector_norm(x) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def is_orthogonalised(name: str, parameter: Tensor) -> bool:
    """Return True if Muon updates a parameter: a matrix of a block."""
    return parameter.dim() == 2 and name.startswith("blocks.")
