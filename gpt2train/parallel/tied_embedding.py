"""Tied token embedding of a pipeline: one weight, input layer on the first stage and output layer on the last.

Both stages have a copy with the same initial value. Their gradients are summed once per step, so that both get the same
update and stay bitwise equal (as in Megatron-LM). The sum is over a group of two processes, after the data-parallel
reduction and before clipping.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.errors import RunError
from gpt2train.model.causal_lm import CausalLM
from gpt2train.parallel.grad_norm import local
from gpt2train.parallel.mesh import all_or_raise

COMPARE_CHUNK = 1 << 24  # elements compared at a time: 64 MB of float32


class TiedEmbedding:
    """The two copies of `wte.weight`. All processes construct it together, also those without a copy.

    Args:
        parts: model parts of this process.
        mesh: mesh of all processes, pipeline dimension outermost.
        timeout: timeout of the collectives.

    Attributes:
        copy: copy of the weight on this process, if it has one.
        second: the copy of the last stage, which is excluded from the gradient norm and the parameter count.
    """

    def __init__(self, parts: Sequence[CausalLM], mesh: DeviceMesh, timeout: timedelta) -> None:
        ends = mesh.mesh[[0, -1]].flatten(1)
        # Every process creates every group, in the same order.
        self.group, _ = dist.new_subgroups_by_enumeration(ends.T.tolist(), timeout=timeout)
        self.copy: Tensor | None = next(
            (part.wte.weight for part in parts if part.has_embeddings or part.has_head), None
        )
        self.second: Tensor | None = self.copy if any(part.has_head for part in parts) else None

    def add_gradients(self) -> None:
        """Replace the gradients of both copies by their sum."""
        if self.copy is not None:
            dist.all_reduce(local(cast(Tensor, self.copy.grad)), group=self.group)

    def check(self) -> None:
        """Compare the two copies bitwise. Collective.

        Raises:
            RunError: on every process, if they differ.
        """

        def compare() -> None:
            if self.copy is not None and not self._equal(local(self.copy.detach())):
                raise RunError("the copies of wte.weight on the first and the last pipeline stage differ; not saved")

        all_or_raise(compare)

    def _equal(self, tensor: Tensor) -> bool:
        same = True
        for piece in tensor.flatten().split(COMPARE_CHUNK):
            first = piece.clone()
            dist.broadcast(first, group=self.group, group_src=0)
            same = same and torch.equal(first.view(torch.int32), piece.view(torch.int32))
        return same
