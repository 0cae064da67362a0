"""Pipeline parallelism: the stages of this process, and their schedule.

The micro-batches of a step pass through the stages in the order of a schedule of `torch.distributed.pipelining`: GPipe
(Huang et al. 2019), 1F1B (PipeDream-Flush, Narayanan et al. 2021) or interleaved 1F1B with several stages per process.
Every process reads the whole batch itself; only hidden states and their gradients are sent. Where a stage without the
embeddings looks up the token ids (`CausalLM.reads_ids`), it takes them from there.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from gpt2train.data.batch import Batch
from gpt2train.model.causal_lm import CausalLM
from gpt2train.parallel.mesh import PIPELINE

# When a peer is lost, torch's schedules print the plan of all ranks; the launcher reports the lost rank in one line.
logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}


class Pipeline:
    """Model parts of this process, as stages of a pipeline.

    Args:
        parts: model parts of this process, in the order of the layers: stages `rank`, `rank + size`, …
        mesh: mesh of all processes; the pipeline is its dimension "pp".
        device: device of this process.
        schedule: "1f1b", "gpipe" or "interleaved".
        sent: function of a layer that returns the shape [micro_batch, length, hidden] of the hidden states that the
            stage before it sends to the stage that begins with it.
        dtype: dtype in which hidden states and their gradients are sent, the compute dtype as in Megatron-LM. Every
            stage computes its residual stream in float32, unless `CausalLM.stream` says otherwise.
        loss_size: size of the loss: a scalar, or a vector of terms.
        autocast: function that returns the autocast context of a forward. It must not span the backward or a whole
            step, because autocast keeps half-precision copies of all weights until it ends.
    """

    def __init__(
        self,
        parts: Sequence[CausalLM],
        mesh: DeviceMesh,
        device: torch.device,
        schedule: str,
        sent: Callable[[int], tuple[int, int, int]],
        dtype: torch.dtype,
        loss_size: tuple[int, ...],
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.parts, self.schedule, self.device = parts, schedule, device
        self.sent, self.dtype, self.loss_size = sent, dtype, loss_size
        self.group = mesh[PIPELINE].get_group()
        self.rank, self.size = mesh[PIPELINE].get_local_rank(), mesh[PIPELINE].size()
        self._gives_ids = any(part.reads_ids and not part.has_embeddings for part in parts)
        self._total = torch.zeros(loss_size, device=self.device)
        self._cached_schedule: tuple[int, Any] = (0, None)
        for part in parts:
            part.forward = self._checked(part, autocast)  # type: ignore[method-assign]

    def accumulate(self, batches: Sequence[Batch], factor: float) -> Tensor:
        """Run forward and backward of a step's micro-batches.

        The batches have equal shapes, the same on every process; the factor is that of the summed loss before the
        backward.

        Returns:
            float32 of `loss_size`, the sum over the targets on the last process, 0 on the others.
        """
        self._total = torch.zeros(self.loss_size, device=self.device)
        keyword_lists = [self._keywords(batch) for batch in batches]
        whole = {name: torch.cat([keywords[name] for keywords in keyword_lists]) for name in keyword_lists[0]}
        tokens = torch.cat([batch.tokens for batch in batches])
        # torch splits all arguments into micro-batches along their first dimension, including the factor.
        factors = torch.full((len(batches),), factor, device=self.device)
        schedule = self._schedule_of(len(batches), batches[0].tokens)
        try:
            schedule.step(
                *([tokens] if self.parts[0].has_embeddings else []), target=factors, return_outputs=False, **whole
            )
        except RuntimeError as error:
            # torch wraps errors of a stage's forward, such as a lost peer, in a long message about the stage's inputs.
            raise error.__cause__ or error from None
        return self._total

    def evaluate(self, batches: Sequence[Batch], sums: int) -> Tensor:
        """Run the forward only, in a loop of our own: on torch 2.11 a schedule cannot evaluate before it has trained.

        In each tick every process computes one micro-batch, then all send their results on. Micro-batches are grouped
        by the number of processes, so that a group returns to the first process, for its next stage, just when the
        previous group has left: there are bubbles only at the start and the end, also with several stages per process.

        Returns:
            float64 [sums], the summed loss and the scores of the objective on the last process, 0 on the others.
        """
        total = torch.zeros(sums, dtype=torch.float64, device=self.device)
        groups = range(0, len(batches), self.size)
        plan = [(part, number) for first in groups for part in self.parts for number in range(first, first + self.size)]
        behind, ahead = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        arrived = torch.empty(0)
        for tick in range(len(plan) + self.size - 1):
            transfers = []
            if (task := self._task(plan, tick, len(batches))) is not None:
                part, number = task
                batch = batches[number]
                out = part(batch.tokens if part.has_embeddings else arrived, **self._keywords(batch))
                if part.has_head:
                    total += out.double()
                else:
                    transfers.append(dist.P2POp(dist.isend, out.contiguous(), group=self.group, group_peer=ahead))
            if (then := self._task(plan, tick + 1, len(batches))) is not None and not then[0].has_embeddings:
                arrived = torch.empty(self.sent(then[0].layers.start), dtype=self.dtype, device=self.device)
                transfers.append(dist.P2POp(dist.irecv, arrived, group=self.group, group_peer=behind))
            for transfer in dist.batch_isend_irecv(transfers) if transfers else []:
                transfer.wait()
        return total

    def logits(self, tokens: Tensor, slices: int, head: Callable[[Tensor], Tensor] | None = None) -> Tensor | None:
        """Compute the logits of single sequences, for few tokens of a sample: the stages wait for each other.

        `slices` is the number of slices into which sequence parallelism splits a sequence; the result of `head` takes
        the place of the logits.

        Returns:
            Logits on the last process, None on the others.
        """
        batch, length = tokens.shape
        shape = batch, length // slices, self.sent(0)[-1]
        hidden, ids = tokens, {"ids": tokens} if self._gives_ids else {}
        for stage in range(self.size * len(self.parts) - 1):
            owner = stage % self.size
            if owner == self.rank:
                hidden = self.parts[stage // self.size](hidden, **ids).contiguous()
            else:
                hidden = torch.empty(shape, dtype=self.dtype, device=self.device)
            dist.broadcast(hidden, group=self.group, group_src=owner)
        return self.parts[-1](hidden, head=head, **ids) if self.rank == self.size - 1 else None

    def _task(self, plan: list[tuple[CausalLM, int]], tick: int, batches: int) -> tuple[CausalLM, int] | None:
        """Model part and micro-batch of this process in a tick; each process is one tick behind the previous one."""
        index = tick - self.rank
        return plan[index] if 0 <= index < len(plan) and plan[index][1] < batches else None

    def _schedule_of(self, micro_batches: int, tokens: Tensor) -> Any:
        """Schedule for this many micro-batches, rebuilt when the batch size ramp-up changes their number."""
        if self._cached_schedule[0] != micro_batches:
            kind = SCHEDULES[self.schedule]
            stages: Any = [self._stage(index, tokens) for index in range(len(self.parts))]
            # No gradient scaling: torch would divide the gradients of earlier steps again (scale_grads).
            schedule = kind(
                stages if kind is ScheduleInterleaved1F1B else stages[0],
                micro_batches,
                loss_fn=self._weighted,
                scale_grads=False,
            )
            self._cached_schedule = micro_batches, schedule
        return self._cached_schedule[1]

    def _stage(self, index: int, tokens: Tensor) -> PipelineStage:
        """Build a stage with all shapes given, so that torch need not infer them by an extra forward and backward."""
        part = self.parts[index]
        before, after = (
            torch.empty(self.sent(layer), dtype=self.dtype, device="meta", requires_grad=True)
            for layer in (part.layers.start, part.layers.stop)
        )
        loss = torch.empty(self.loss_size, device="meta", requires_grad=True)
        return PipelineStage(
            part,
            self.rank + index * self.size,
            self.size * len(self.parts),
            self.device,
            input_args=(tokens.to("meta") if part.has_embeddings else before,),
            output_args=(loss if part.has_head else after,),
            group=self.group,
        )

    def _keywords(self, batch: Batch) -> dict[str, Tensor]:
        """Keyword arguments of every stage of this process, in addition to its input."""
        ids = {"ids": batch.tokens} if self._gives_ids else {}
        return {"targets": batch.targets, **batch.extra, **ids}

    def _weighted(self, loss: Tensor, factor: Tensor) -> Tensor:
        self._total += loss.detach()
        return (loss * factor).sum()

    def _checked(self, part: CausalLM, autocast: Callable[[], AbstractContextManager[object]]) -> Callable[..., Tensor]:
        """Wrap a part's forward with casts of what is sent, and a check, since gloo accepts a wrong dtype silently."""
        inner = part.forward

        def forward(received: Tensor, **keywords: Any) -> Tensor:
            with autocast():
                out = inner(received if part.has_embeddings else received.float(), **keywords)
            size = self.loss_size if part.has_head else self.sent(part.layers.stop)
            kind = torch.float32 if part.has_head or part.stream is None else part.stream
            expected = (torch.Size(size), kind)
            evaluated = part.has_head and not part.training
            if "targets" in keywords and not evaluated and (out.shape, out.dtype) != expected:
                raise ValueError(f"a pipeline stage returned {out.shape} {out.dtype}, expected {expected}")
            return out if part.has_head else out.to(self.dtype)

        return forward
