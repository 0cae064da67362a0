"""Callbacks of a training: code of one's own at its begin, after steps, validations and saves, and at its end.

A plug-in registers a subclass of `Callback` by name in `CALLBACKS`, and the setting `callbacks` chooses it. Every
process has its own object of each, and calls it by itself.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpt2train.config import RunConfig
from gpt2train.config.callbacks import CALLBACKS, CallbackSpec, callback_options
from gpt2train.errors import RunError, UserError
from gpt2train.model.causal_lm import CausalLM
from gpt2train.plugins import load
from gpt2train.settings import Settings
from gpt2train.training.train_state import TrainState

__all__ = ["CALLBACKS", "Callback", "CallbackList", "CallbackSpec", "RunView"]

log = logging.getLogger("gpt2train")

Event = Literal["begin", "step", "validation", "save", "end"]


@dataclass(frozen=True)
class RunView:
    """State of a run that a callback is shown.

    Attributes:
        config: settings of the run; `output` is its folder.
        rank: rank of this process; with rank 0 alone a callback acts once.
        world: number of processes.
        model_parts: the model, or the pipeline stages of this process, with the parameters that it has; read only.
        state: train state after the last step.
        row: metrics of the last step, as in metrics.jsonl, the same on every rank but for times and memory; empty
            before the first step.
        checkpoint: newest checkpoint that this job has written whole; None before the first one.
    """

    config: RunConfig
    rank: int
    world: int
    model_parts: Sequence[CausalLM]
    state: TrainState
    row: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    _reasons: list[str] = field(default_factory=list, repr=False)  # of callbacks that ask the run to stop

    def stop(self, reason: str) -> None:
        """Ask the run to stop: it is finished after the next step on all processes, with a checkpoint."""
        self._reasons.append(reason)


class Callback:
    """Base class of callbacks, whose methods do nothing.

    Args:
        options: options of the run's setting `callbacks`, of the settings model that was registered with the class.

    An exception ends the run: after the next step, with a checkpoint, and with one line that names the callback. The
    methods must not communicate with other processes, which may call them in another step.
    """

    def __init__(self, options: Settings) -> None:
        self.options = options

    def begin(self, run: RunView) -> None:
        """Act before the first step of this job; an exception ends it at once."""

    def step(self, run: RunView) -> None:
        """Act after a step."""

    def validation(self, run: RunView) -> None:
        """Act after a validation, after the step's own call; `run.row` has `valid_loss`."""

    def save(self, run: RunView) -> None:
        """Act when `run.checkpoint` is on disk; steps may have passed since its own."""

    def end(self, run: RunView) -> None:
        """Act after the last step and its save, also of a run that was stopped, but not of one that failed."""


class CallbackList:
    """Callbacks of a run that has not begun, in the order of the setting.

    Attributes:
        stopping: True if a callback of this process failed or asked the run to stop.
        stop_reason: name of the callback of this process that asked first, and its reason; None if none did.

    Raises:
        UserError: a callback cannot be created.
    """

    def __init__(self, run: RunView) -> None:
        self._run = run
        chosen = callback_options(run.config.callbacks)
        self._callbacks = {name: _create(name, options) for name, options in chosen.items()}
        self.stopping = False
        self.stop_reason: str | None = None
        self._error: RunError | UserError | None = None

    def __call__(self, event: Event, **changes: Any) -> None:
        """Call all callbacks of an event, with changes of the view; none is called after one has failed."""
        if not self._callbacks:
            return
        self._run = replace(self._run, **changes)
        for name, callback in self._callbacks.items():
            if self._error is None:
                self._error = _error_of(name, callback, event, self._run)
            if self._run._reasons and self.stop_reason is None:
                log.info("callback %s: the run stops after the next step: %s", name, self._run._reasons[0])
                self.stop_reason = f"callback {name}: {self._run._reasons[0]}"
                self.stopping = True
        self.stopping = self.stopping or self._error is not None

    def saved(self, checkpoints: Iterable[Path]) -> None:
        """Call the callbacks for checkpoints that are on disk now."""
        for checkpoint in checkpoints:
            self("save", checkpoint=checkpoint)

    def check(self) -> None:
        """Raise the error of the first callback that failed on this process.

        Raises:
            UserError: it raised one itself.
            RunError: it raised another exception.
        """
        if self._error is not None:
            raise self._error


def _create(name: str, options: Settings) -> Callback:
    kind = load(CALLBACKS[name].callback)
    if not (isinstance(kind, type) and issubclass(kind, Callback)):
        raise UserError(f"callback {name}: {CALLBACKS[name].callback} is not a subclass of Callback")
    try:
        return kind(options)
    except Exception as error:  # code of others, which may fail in any way
        raise UserError(f"callback {name} cannot be created ({_described(error)}); correct or leave it out") from error


def _error_of(name: str, callback: Callback, event: Event, run: RunView) -> RunError | UserError | None:
    try:
        getattr(callback, event)(run)
    except (UserError, RunError) as error:
        return type(error)(f"callback {name}: {error}")
    except Exception as error:  # code of others, which may fail in any way
        line = (
            f"callback {name} failed in {event} at step {run.state.step} on rank {run.rank} ({_described(error)}); "
            "correct it, or leave it out of callbacks"
        )
        log.error("%s", line, exc_info=error)  # a record with a traceback goes to the log file alone
        return RunError(line)
    return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
