"""The token embedding of a pipeline: input layer on the first stage, output layer on the last, one weight.

Both stages have a copy with the same first value. Their gradients are added up once a step, so that the same update is
done to both and they stay equal to the last bit (Megatron-LM does it so). The sum is over a group of two processes for
each column of the mesh, after the data-parallel reduction and before clipping.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.errors import RunError
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.mesh import together
from gpt2train.parallel.norm import local

PIECE = 1 << 24  # elements compared at a time: 64 MB of float32


class TiedEmbedding:
    """The two copies of `wte.weight`; for all processes to make together, those without a copy too.

    Args:
        parts: of this process.
        mesh: of all processes, pipeline outermost.
        timeout: how long one waits for the other.
    """

    def __init__(self, parts: Sequence[GPT2], mesh: DeviceMesh, timeout: timedelta) -> None:
        ends = mesh.mesh[[0, -1]].flatten(1)
        # Every process makes every group, in the same order.
        self.group, _ = dist.new_subgroups_by_enumeration(ends.T.tolist(), timeout=timeout)
        self.copy: Tensor | None = next((part.wte.weight for part in parts if part.begins or part.ends), None)
        self.second: Tensor | None = self.copy if any(part.ends for part in parts) else None
        """The copy that counts neither in the gradient's norm nor in the number of parameters."""

    def add_gradients(self) -> None:
        """Give both copies the sum of their gradients."""
        if self.copy is not None:
            dist.all_reduce(local(cast(Tensor, self.copy.grad)), group=self.group)

    def check(self) -> None:
        """Compare the two copies bit by bit; all processes together.

        Raises:
            RunError: they differ, on every process.
        """

        def compare() -> None:
            if self.copy is not None and not self._equal(local(self.copy.detach())):
                raise RunError("the copies of wte.weight on the first and the last pipeline stage differ; not saved")

        together(compare)

    def _equal(self, mine: Tensor) -> bool:
        same = True
        for piece in mine.flatten().split(PIECE):
            first = piece.clone()
            dist.broadcast(first, group=self.group, group_src=0)
            same = same and torch.equal(first.view(torch.int32), piece.view(torch.int32))
        return same
