"""A model and its optimizer on a layout of processes: what the training loop drives.

The order in which parallelism is applied matters: built on the meta device, cut into the stages of the pipeline, split
by tensor parallelism, re-tied, activation checkpointing, compiled, sharded by FSDP2, given memory and first values.
The optimizer comes last, since it must hold the final parameters.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model.gpt2 import GPT2
from gpt2train.optim import clip, make_optimizer, set_learning_rate, squared_norm
from gpt2train.parallel.fsdp import accumulate, local_gradients, materialise, reshard, shard
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TENSOR, Place, make_mesh
from gpt2train.parallel.pipeline import Pipeline
from gpt2train.parallel.rng import dropout_seed
from gpt2train.parallel.stages import stage_layers
from gpt2train.parallel.tensor import apply_tensor_parallel
from gpt2train.parallel.tied import TiedEmbedding


@dataclass(frozen=True)
class Result:
    """What came of one step, the same on every process."""

    loss: float
    """Mean over the tokens of the step."""
    grad_norm: float
    """Over all parameters, before clipping."""
    updated: bool
    """False when the step was skipped since the gradient is not finite."""
    stop: bool
    """Whether any process was asked to stop."""


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
            shard(part, self.mesh, config.parallel)
            materialise(part, torch.device("cpu") if config.parallel.offload else place.device, config.seed)
        self.optimizer = make_optimizer(self.parts, config.optimizer)
        self.pipeline = self.tied = None
        if layout.pp > 1:
            length = config.model.context // (layout.tp if config.parallel.sequence_parallel else 1)
            sent = (layout.micro_batch, length, config.model.hidden)
            self.pipeline = Pipeline(
                self.parts, self.mesh, place.device, config.parallel.schedule, sent, self._autocast
            )
            self.tied = TiedEmbedding(self.parts, self.mesh, place.timeout)

    @property
    def data_rank(self) -> int:
        """Which share of the samples this process works on."""
        return self.layout.data_rank(self.place.rank)

    def accumulate(self, batches: Sequence[Batch], tokens: int, step: int) -> Tensor:
        """Forward and backward of this process's micro-batches; the gradients of all of them are in place afterwards.

        Args:
            tokens: targets that count in the whole step, over all processes: the loss is divided by it.
            step: seeds dropout, with the place of this process.

        Returns:
            float32 scalar, the sum of -log p over the targets of this process.
        """
        torch.manual_seed(self._dropout_seed(step))
        if self.pipeline is not None:
            return self.pipeline.accumulate(batches, 1 / tokens)
        total = torch.zeros((), device=self.place.device)
        for turn, batch in enumerate(batches):
            accumulate(self.parts, self.config.parallel.zero, last=turn == len(batches) - 1)
            with self._autocast():
                loss = self.parts[0](batch.tokens, batch.targets, **batch.marks)
            (loss / tokens).backward()
            total += loss.detach()
        return total

    def update(self, total: Tensor, tokens: int, lr: float, stop: bool) -> Result:
        """Clip and step, or skip, the same on every process.

        One collective tells everybody the loss, the norm and whether to stop. A rank's infinite gradient makes the sum
        not finite on all of them, so that all skip or none does. Replicated gradients are counted once.
        """
        if self.tied is not None:
            self.tied.add_gradients()
        gradients = local_gradients(self.parts)
        counted = local_gradients(self.parts, but=self.tied.second if self.tied else None)
        square = squared_norm(counted) / self.layout.replicate
        told = torch.stack([total.double() / self.layout.tp, square, total.new_tensor(stop).double()])
        dist.all_reduce(told)
        loss_sum, square_sum, stopping = told.tolist()
        norm = math.sqrt(square_sum) if square_sum >= 0 else math.nan
        good = math.isfinite(norm)
        if good:
            clip(gradients, norm, self.config.optimizer.clip)
            set_learning_rate(self.optimizer, lr)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Result(loss=loss_sum / tokens, grad_norm=norm, updated=good, stop=stopping > 0)

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
        """Weights and optimizer state by names that no layout shows in: `model.<name>`, `optim.<name>.<key>`."""
        state: dict[str, Tensor] = {}
        for part in self.parts:
            for name, parameter in part.named_parameters():
                state[f"model.{name}"] = parameter.detach()
                state |= {f"optim.{name}.{key}": value for key, value in self.optimizer.state[parameter].items()}
        return state

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
