"""Parameters that several pipeline stages use: a tied token embedding, value embeddings, and T5's position biases.

Each of these stages has a copy with the same initial value. Their gradients are summed once per step, so that all get
the same update and stay bitwise equal (as in Megatron-LM). The sum is over a group with one process of each stage,
after the data-parallel reduction and before clipping.

Under the interleaved schedule a process may have several of these stages. Then the parameter of the first one is in the
optimizer and in checkpoints; the others give it their gradients and take its value before each step.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.errors import RunError
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import on_stage, sizes
from gpt2train.parallel.grad_norm import align_grad_placements, local
from gpt2train.parallel.mesh import all_or_raise, own_group

COMPARE_CHUNK = 1 << 24  # elements compared at a time: 64 MB of float32


class SharedParameters:
    """The copies on this process of parameters that several stages use. All processes construct it together.

    `stages` has the layers of each stage of all processes; the mesh has the pipeline dimension outermost.

    Attributes:
        named: pairs of name and parameter of this process, without the further copies that it has of a parameter.
        copies: those of them that are not on the first of their processes, which are excluded from the gradient norm.
    """

    def __init__(
        self, parts: Sequence[CausalLM], stages: Sequence[range], mesh: DeviceMesh, timeout: timedelta
    ) -> None:
        shape, processes = parts[0].shape, mesh.mesh.shape[0]
        mine: dict[str, Tensor] = {}
        self._further: list[tuple[Tensor, Tensor]] = []  # further copies of this process, with the first one
        for name, parameter in (pair for part in parts for pair in part.named_parameters()):
            if mine.setdefault(name, parameter) is not parameter:
                self._further.append((parameter, mine[name]))
        self.named = list(mine.items())
        groups: dict[tuple[int, ...], Any] = {}  # None on a process without any of these stages
        self.copies: list[Tensor] = []
        self._shared: list[tuple[str, Tensor, dist.ProcessGroup]] = []
        self._places: dict[str, str] = {}
        for name in sizes(shape):
            if name.startswith("blocks."):
                continue
            numbers = [number for number, layers in enumerate(stages) if on_stage(name, shape, layers)]
            users = sorted({number % processes for number in numbers})
            if len(users) == 1:
                continue
            # In the same order on every process; a set of processes has one group.
            if (key := tuple(users)) not in groups:
                rows = mesh.mesh[users].flatten(1).T.tolist()
                groups[key] = own_group(rows, timeout, "shared")
            ends = numbers == [0, len(stages) - 1]
            among = f"the pipeline stages {', '.join(map(str, numbers))}"
            self._places[name] = "the first and the last pipeline stage" if ends else among
            if name in mine:
                self._shared.append((name, mine[name], groups[key]))
                if dist.get_group_rank(groups[key], dist.get_rank()) > 0:
                    self.copies.append(mine[name])

    def add_gradients(self) -> None:
        """Replace the gradients of all copies of a parameter by their sum."""
        align_grad_placements([parameter for pair in self._further for parameter in pair])
        for parameter, first in self._further:
            local(cast(Tensor, first.grad)).add_(local(cast(Tensor, parameter.grad)))
            parameter.grad = None
        for _, parameter, group in self._shared:
            dist.all_reduce(local(cast(Tensor, parameter.grad)), group=group)

    @torch.no_grad()
    def copy_first(self) -> None:
        """Give further copies of this process the value of the first one."""
        for parameter, first in self._further:
            local(parameter).copy_(local(first))

    def check(self) -> None:
        """Raise a RunError on every process if copies differ from those of their first stage. Collective."""

        def compare() -> None:
            # All are compared before one is reported, since other processes take part in the comparison.
            for name in [name for name, parameter, group in self._shared if not _equal(parameter.detach(), group)]:
                raise RunError(f"the copies of {name} on {self._places[name]} differ; not saved")

        all_or_raise(compare)


def _equal(parameter: Tensor, group: dist.ProcessGroup) -> bool:
    """Return True if the local part equals that of the first process of the group."""
    same = True
    for piece in local(parameter).flatten().split(COMPARE_CHUNK):
        first = piece.clone()
        dist.broadcast(first, group=group, group_src=0)
        same = same and torch.equal(first.view(torch.int32), piece.view(torch.int32))
    return same
