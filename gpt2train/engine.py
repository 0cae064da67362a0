"""A model and its optimizer on a layout of processes: what the training loop drives.

The order in which parallelism is applied matters: built on the meta device, cut into the stages of the pipeline, split
by tensor parallelism, re-tied, activation checkpointing, compiled, sharded by FSDP2, given memory and first values.
The optimizer comes last, since it must hold the final parameters.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model.gpt2 import GPT2
from gpt2train.optim import AdamW
from gpt2train.parallel.activation import apply_activation_checkpointing
from gpt2train.parallel.fsdp import accumulate, materialise, reshard, shard
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TENSOR, Place, make_mesh
from gpt2train.parallel.norm import canonicalise, counts, local, norms, squared_norm
from gpt2train.parallel.pipeline import Pipeline
from gpt2train.parallel.rng import dropout_seed
from gpt2train.parallel.stages import stage_layers
from gpt2train.parallel.tensor import apply_tensor_parallel
from gpt2train.parallel.tied import TiedEmbedding
from gpt2train.speed import compile_part


@dataclass(frozen=True)
class Measure:
    """What came of the backward passes of one step, on the device and the same on every process.

    Attributes:
        told: float64 [3]: mean loss over the tokens of the step, gradient norm over all parameters before clipping,
            and how many processes were asked to stop. In the CPU's memory, but for a GPU only when `ready`.
        ready: the moment from which `told` is there; None where it is at once.
        divisor: float32, what gradients are to be divided by: the loss scale, times the excess over the clipping limit.
        bad: float32, 1 where the norm is not finite.
        gradients: the shares that live here, in the order of the optimizer's parameters.
        each: float64, the norm of each of them.
        finite_loss: bool, whether this process's own loss is finite.
    """

    told: Tensor
    ready: torch.cuda.Event | None
    divisor: Tensor
    bad: Tensor
    gradients: list[Tensor]
    each: Tensor
    finite_loss: Tensor

    def read(self) -> tuple[float, float, bool]:
        """Loss, gradient norm, and whether any process was asked to stop.

        Waits for the device, but not for what it was given to do after `Engine.measure`.
        """
        if self.ready is not None:
            self.ready.synchronize()
        loss, norm, stopping = self.told.tolist()
        return loss, norm, stopping > 0


class Engine:
    """A GPT-2 on this process's place of a layout.

    Attributes:
        parts: the piece of the model that lives here; with an interleaved pipeline several.
    """

    def __init__(self, config: RunConfig, place: Place) -> None:
        self.config, self.place = config, place
        self.layout = Layout.of(config, place.world)
        self.mesh = make_mesh(place, self.layout)
        layout, at = self.layout, self.layout.coordinates(place.rank)
        stages = stage_layers(config.shape, layout.pp * config.parallel.stages)
        with torch.device("meta"):
            self.parts = [
                GPT2(config.shape, config.model.dropout).keep_only(mine) for mine in stages[at.pp :: layout.pp]
            ]
        for part in self.parts:
            apply_tensor_parallel(part, self.mesh[TENSOR], config.parallel.sequence_parallel)
            apply_activation_checkpointing(part, config.parallel.activation_checkpointing)
            alone = place.world == 1 and not config.parallel.offload
            compile_part(part, config.speed, place.device, whole=alone)
            shard(part, self.mesh, config.parallel)
            materialise(part, torch.device("cpu") if config.parallel.offload else place.device, config.seed)
        self.pipeline = self.tied = None
        if layout.pp > 1:
            length = config.model.context // (layout.tp if config.parallel.sequence_parallel else 1)
            sent = (layout.micro_batch, length, config.model.hidden)
            self.pipeline = Pipeline(
                self.parts, self.mesh, place.device, config.parallel.schedule, sent, self._autocast
            )
            self.tied = TiedEmbedding(self.parts, self.mesh, place.timeout)
        named = [pair for part in self.parts for pair in part.named_parameters()]
        self.optimizer = AdamW(named, config.optimizer)
        copies = [self.tied.second] if self.tied is not None and self.tied.second is not None else []
        self._counted = counts([parameter for _, parameter in named], place.world // layout.pp, copies)

    @property
    def data_rank(self) -> int:
        """Which share of the samples this process works on."""
        return self.layout.data_rank(self.place.rank)

    def accumulate(self, batches: Sequence[Batch], tokens: int, step: int, scale: float = 1.0) -> Tensor:
        """Forward and backward of this process's micro-batches; the gradients of all of them are in place afterwards.

        Args:
            tokens: targets that count in the whole step, over all processes: the loss is divided by it.
            step: seeds dropout, with the place of this process.
            scale: of the loss, in fp16; the gradients are as many times larger.

        Returns:
            float32 scalar, the sum of -log p over the targets of this process.
        """
        torch.manual_seed(self._dropout_seed(step))
        if self.pipeline is not None:
            return self.pipeline.accumulate(batches, scale / tokens)
        total = torch.zeros((), device=self.place.device)
        for turn, batch in enumerate(batches):
            accumulate(self.parts, self.config.parallel.zero, last=turn == len(batches) - 1)
            with self._autocast():
                loss = self.parts[0](batch.tokens, batch.targets, **batch.marks)
            (loss * (scale / tokens)).backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def measure(self, total: Tensor, tokens: int, scale: float, stop: bool) -> Measure:
        """Loss, gradient norm and whether to stop, by one collective. Nothing waits for the device.

        A single infinite element on one process makes the norm not finite on all of them.

        Args:
            total: what `accumulate` gave.
            tokens: what the loss was divided by.
            scale: what it was multiplied by.
            stop: whether this process was asked to stop.
        """
        parameters = [parameter for _, parameter in self.optimizer.named]
        canonicalise(parameters)
        if self.tied is not None:
            self.tied.add_gradients()
        gradients = [local(cast(Tensor, parameter.grad)) for parameter in parameters]
        each = norms(gradients)
        square = squared_norm(each, self._counted).to(total.device)
        # Numbers go to the device as arguments of a kernel: to copy them there would wait for it.
        asked = torch.full((), float(stop), dtype=torch.float64, device=total.device)
        told = torch.stack([total.double() / self.layout.tp, square, asked])
        dist.all_reduce(told)
        told[0] /= tokens
        told[1].sqrt_().div_(scale)
        out, ready = _on_its_way(told)
        return Measure(
            told=out,
            ready=ready,
            divisor=(((told[1] + 1e-6) / self.config.optimizer.clip).clamp(min=1) * scale).float(),
            bad=(~told[1].isfinite()).float(),
            gradients=gradients,
            each=each,
            finite_loss=total.isfinite(),
        )

    @torch.no_grad()
    def update(self, measure: Measure, lr: float, skip: bool = False) -> None:
        """Clip, undo the loss scale and step, in one kernel; where the norm is not finite, nothing changes.

        Args:
            measure: of this step.
            lr: learning rate.
            skip: leave this step out in any case.
        """
        device = self.optimizer.device  # the CPU when the optimizer is offloaded
        bad = torch.ones_like(measure.bad) if skip else measure.bad
        rate = torch.full((), lr, dtype=torch.float32, device=device)
        self.optimizer.step(measure.gradients, rate, measure.divisor.to(device), bad.to(device))
        for _, parameter in self.optimizer.named:
            parameter.grad = None
        measure.gradients.clear()  # their memory is for the next step

    def culprit(self, measure: Measure) -> str:
        """Where it began that a gradient is not finite: the first rank whose loss is not, or else its share of one.

        All processes together, and only after a step that was skipped: it waits for the device.
        """
        each = zip(self.optimizer.named, measure.each.tolist(), strict=True)
        names = [f"the gradient of {name}" for (name, _), norm in each if not math.isfinite(norm)]
        mine = "the loss" if not measure.finite_loss else names[0] if names else ""
        found: list[str] = [""] * self.place.world
        dist.all_gather_object(found, mine)
        losses = [rank for rank, what in enumerate(found) if what == "the loss"]
        rank = (losses or [rank for rank, what in enumerate(found) if what])[0]
        return f"{found[rank]} on rank {rank}"

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch]) -> float:
        """Sum of -log p over the targets of all processes. Every process makes the same number of turns."""
        for part in self.parts:
            part.eval()
        if self.pipeline is not None:
            total = self.pipeline.evaluate(batches)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self.place.device)
            for batch in batches:
                with self._autocast():
                    total += self.parts[0](batch.tokens, batch.targets, **batch.marks).double()
        for part in self.parts:
            part.train()
        reshard(self.parts)
        dist.all_reduce(total)
        return total.item() / self.layout.tp

    def parameters(self) -> list[Tensor]:
        """The parameters that live here."""
        return [parameter for part in self.parts for parameter in part.parameters()]

    def state(self) -> Mapping[str, Tensor]:
        """Weights and optimizer state by names that no layout shows in: `model.<name>`, `optim.<name>.<key>`.

        Raises:
            RunError: the two ends of a pipeline no longer have the same embedding.
        """
        if self.tied is not None:
            self.tied.check()
        state: dict[str, Tensor] = {}
        for part in self.parts:
            for name, parameter in part.named_parameters():
                state[f"model.{name}"] = parameter.detach()
        return state | {f"optim.{key}": value for key, value in self.optimizer.state().items()}

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if (dtype := dtypes.get(self.config.precision)) is None:
            return contextlib.nullcontext()
        return torch.autocast(self.place.device.type, dtype=dtype)

    def _dropout_seed(self, step: int) -> int:
        """Ranks of a tensor-parallel group share it, unless each holds other tokens; other places have others."""
        at = self.layout.coordinates(self.place.rank)
        slice_ = at.tp if self.config.parallel.sequence_parallel else 0
        return dropout_seed(self.config.seed, step, at.pp, self.data_rank, slice_)


def _on_its_way(told: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy in the CPU's memory, and when it will be there."""
    if told.device.type != "cuda":
        return told, None
    copy = torch.empty(told.shape, dtype=told.dtype, pin_memory=True).copy_(told, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copy, ready
