"""Pipeline parallelism: the stages of this process, and the schedule that drives them.

The micro-batches of one step go through the stages in the order of a schedule of `torch.distributed.pipelining`: GPipe
(Huang et al. 2019), 1F1B (PipeDream-Flush, Narayanan et al. 2021) or interleaved 1F1B, where each process has several
stages. Every process reads the whole batch itself; only hidden states and their gradients travel.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from gpt2train.data.batch import Batch
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.mesh import PIPELINE

# When a peer is lost, torch's schedules print the plan of all ranks; the launcher says in one line who was lost.
logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}


class Pipeline:
    """The parts of a model that live on this process, as stages of a pipeline.

    Args:
        parts: of this process, in the order of the layers: stage `rank`, `rank + size`, …
        mesh: of all processes; the pipeline runs along its dimension "pp".
        device: of this process.
        schedule: "1f1b", "gpipe" or "interleaved".
        sent: shape [micro_batch, length, hidden] of what one stage sends to the next.
        autocast: makes the context of each forward. Not of the backward, and not of a whole step: autocast would keep
            its half-precision copy of every weight until the end of it.
    """

    def __init__(
        self,
        parts: Sequence[GPT2],
        mesh: DeviceMesh,
        device: torch.device,
        schedule: str,
        sent: Sequence[int],
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.parts, self.schedule, self.sent, self.device = parts, schedule, tuple(sent), device
        self.group = mesh[PIPELINE].get_group()
        self.rank, self.size = mesh[PIPELINE].get_local_rank(), mesh[PIPELINE].size()
        self._total = torch.zeros((), device=self.device)
        self._ready: tuple[int, Any] = (0, None)
        for part in parts:
            part.forward = self._checked(part, autocast)  # type: ignore[method-assign]

    def accumulate(self, batches: Sequence[Batch], factor: float) -> Tensor:
        """Forward and backward of a step's micro-batches.

        Args:
            batches: all of one shape, the same on every process of the pipeline.
            factor: what the summed loss is multiplied by before the backward.

        Returns:
            float32 scalar, the sum of -log p over the targets; 0 but on the last process.
        """
        self._total = torch.zeros((), device=self.device)
        beside = [_keywords(batch) for batch in batches]
        whole = {name: torch.cat([keywords[name] for keywords in beside]) for name in beside[0]}
        tokens = torch.cat([batch.tokens for batch in batches])
        # Torch cuts everything into micro-batches along its first dimension, the factor as well.
        factors = torch.full((len(batches),), factor, device=self.device)
        schedule = self._schedule_of(len(batches), batches[0].tokens)
        try:
            schedule.step(*([tokens] if self.parts[0].begins else []), target=factors, return_outputs=False, **whole)
        except RuntimeError as error:
            # torch wraps what a stage's forward raises, a lost peer among it, into a page about the stage's inputs.
            raise error.__cause__ or error from None
        return self._total

    def evaluate(self, batches: Sequence[Batch]) -> Tensor:
        """Forward alone, in a loop of our own: on torch 2.11 a schedule cannot evaluate before it has trained.

        In each tick every process works on one micro-batch, then all pass on what they have. Micro-batches go in
        groups of as many as there are processes, so that a group comes back to the first process just when the one
        before it has left: nobody waits but at the ends, with several stages a process too.

        Returns:
            float64 scalar, the sum of -log p over the targets; 0 but on the last process.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        groups = range(0, len(batches), self.size)
        turns = [
            (part, number) for first in groups for part in self.parts for number in range(first, first + self.size)
        ]
        behind, ahead = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        arrived = torch.empty(0)
        for tick in range(len(turns) + self.size - 1):
            moves = []
            if (now := self._turn(turns, tick, len(batches))) is not None:
                part, number = now
                batch = batches[number]
                out = part(batch.tokens if part.begins else arrived, **_keywords(batch))
                if part.ends:
                    total += out.double()
                else:
                    moves.append(dist.P2POp(dist.isend, out.contiguous(), group=self.group, group_peer=ahead))
            if (then := self._turn(turns, tick + 1, len(batches))) is not None and not then[0].begins:
                arrived = torch.empty(self.sent, device=self.device)
                moves.append(dist.P2POp(dist.irecv, arrived, group=self.group, group_peer=behind))
            for move in dist.batch_isend_irecv(moves) if moves else []:
                move.wait()
        return total

    def _turn(self, turns: list[tuple[GPT2, int]], tick: int, batches: int) -> tuple[GPT2, int] | None:
        """What this process works on in a tick: each is one tick behind the process before it."""
        place = tick - self.rank
        return turns[place] if 0 <= place < len(turns) and turns[place][1] < batches else None

    def _schedule_of(self, micro_batches: int, tokens: Tensor) -> Any:
        """The schedule for this many micro-batches, made anew when a growing batch changes their number."""
        if self._ready[0] != micro_batches:
            kind = SCHEDULES[self.schedule]
            stages: Any = [self._stage(place, tokens) for place in range(len(self.parts))]
            # Gradients are left as they are: torch would divide those of earlier steps again (scale_grads).
            made = kind(
                stages if kind is ScheduleInterleaved1F1B else stages[0],
                micro_batches,
                loss_fn=self._weighted,
                scale_grads=False,
            )
            self._ready = micro_batches, made
        return self._ready[1]

    def _stage(self, place: int, tokens: Tensor) -> PipelineStage:
        """With all shapes told, torch has no reason to find them out by an extra forward and backward."""
        part = self.parts[place]
        between = torch.empty(self.sent, device="meta", requires_grad=True)
        loss = torch.empty((), device="meta", requires_grad=True)
        return PipelineStage(
            part,
            self.rank + place * self.size,
            self.size * len(self.parts),
            self.device,
            input_args=(tokens.to("meta") if part.begins else between,),
            output_args=(loss if part.ends else between,),
            group=self.group,
        )

    def _weighted(self, loss: Tensor, factor: Tensor) -> Tensor:
        self._total += loss.detach()
        return loss * factor.squeeze()

    def _checked(self, part: GPT2, autocast: Callable[[], AbstractContextManager[object]]) -> Callable[..., Tensor]:
        """A part's forward, with a look at what it sends: gloo takes a wrong dtype or size without a word."""
        inner = part.forward

        def forward(*arguments: Any, **keywords: Any) -> Tensor:
            with autocast():
                out = inner(*arguments, **keywords)
            expected = (torch.Size(() if part.ends else self.sent), torch.float32)
            if (out.shape, out.dtype) != expected:
                raise ValueError(f"a pipeline stage gave {out.shape} {out.dtype}, not {expected}")
            return out

        return forward


def _keywords(batch: Batch) -> dict[str, Tensor]:
    """What every stage is given of a batch, beside what comes in."""
    return {"targets": batch.targets, **batch.marks}
