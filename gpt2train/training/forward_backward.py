"""Forward and backward passes of the steps, the next one started early where the results allow it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from gpt2train.data.batch import StepBatch
from gpt2train.training.engine import Engine
from gpt2train.training.performance import can_start_next_step
from gpt2train.training.train_state import TrainState


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes of one step; its gradients are in place."""

    batch: StepBatch  # batch of the step, on the device
    loss: Tensor  # float32 on the device, the sum of -log p over the targets of this process (`Engine.accumulate`)
    scale: float  # loss scale


class ForwardBackward:
    """Forward and backward passes of the remaining steps, in order.

    On a GPU the host waits at each step for the loss and the gradient norm. With `start_next` before that, the device
    computes the next step meanwhile, and never waits for the host.

    Attributes:
        started: passes of the next step, if they were started early.
    """

    def __init__(self, engine: Engine, batches: Iterator[StepBatch]) -> None:
        self._engine, self._batches = engine, batches
        self.started: Passes | None = None

    def __call__(self, state: TrainState) -> Passes:
        """Return the passes of the step after `state`."""
        if (passes := self.started) is not None:
            self.started = None
            return passes
        batch = self._batch()
        scale = state.loss_scale(self._engine.config, batch.samples // self._engine.layout.micro_batch)
        return self._run(batch, state.step + 1, scale)

    def start_next(self, step: int) -> None:
        """Start the passes of the step after `step`, unless they depend on the statistics of `step`."""
        if can_start_next_step(self._engine.config, self._engine.ctx.device, step):
            self.started = self._run(self._batch(), step + 1, 1.0)  # never in fp16, which alone has a loss scale

    def probe(self, passes: Passes, state: TrainState) -> Passes:
        """Repeat a part of `passes` with the present weights: one micro-batch, or one for each pipeline stage.

        So little that after a stop request most of the shutdown timeout is left for the save.
        """
        layout, batch = self._engine.layout, passes.batch
        part = batch.micro_batches[: layout.pp]
        targets = max(1, round(batch.targets * len(part) / len(batch.micro_batches)))
        scale = state.loss_scale(self._engine.config, len(part) * layout.data)
        return self._run(replace(batch, targets=targets, micro_batches=part), state.step + 1, scale)

    def _run(self, batch: StepBatch, step: int, scale: float) -> Passes:
        return Passes(batch, self._engine.accumulate(batch.micro_batches, batch.targets, step, scale), scale)

    def _batch(self) -> StepBatch:
        """Batch of the next step, on the device."""
        with self._engine.phases("data"):
            return next(self._batches).to(self._engine.ctx.device)
