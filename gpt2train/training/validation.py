"""Validation during a training: loss, bits per byte, scores of the objective, and a sample text."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.dataset import Dataset
from gpt2train.data.run_tokenizer import find_run_tokenizer
from gpt2train.data.template import encode_prompts
from gpt2train.data.token_bytes import byte_counts, token_bytes
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import UserError
from gpt2train.launch.rank_process import StopRequest
from gpt2train.model.loss import IGNORE
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.parallel.mesh import any_rank, broadcast_from_rank0
from gpt2train.training.engine import Engine
from gpt2train.training.sample_text import sample_length, write_sample

log = logging.getLogger("gpt2train")

CHUNK = 8  # micro-batches between two checks for a stop request
MAX_PROMPT = 256  # tokens
FALLING = ("loss", "bits_per_byte", "perplexity")  # ends of the columns that a training lowers


@dataclass(frozen=True)
class Sample:
    """Sample text of a validation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Measured:
    """Result of a validation."""

    columns: dict[str, float]  # metrics of the step, the same on every process but for the time
    sample: Sample | None = None  # sample text, on rank 0

    def reached(self, stop_at: Mapping[str, float]) -> str | None:
        """Return the reason to end the run, in which it has reached all values of `validation.stop_at`, if so."""
        found = {column: self.columns[column] for column in stop_at if column in self.columns}
        if not stop_at or found.keys() != stop_at.keys():
            return None
        # NaN reaches nothing: each of its comparisons is false
        if not all(v <= stop_at[name] if name.endswith(FALLING) else v >= stop_at[name] for name, v in found.items()):
            return None
        return "reached " + ", ".join(f"{column} {value:.4g}" for column, value in found.items())


@dataclass(frozen=True)
class RunText:
    """Relation of the tokens of a run to text."""

    bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Bytes of each token, int64 [vocab]; empty without a tokenizer."""
    prompt: tuple[int, ...] = ()  # tokens before a sample text; none without samples
    tokenizer: Tokenizer | None = None  # tokenizer of the run, on rank 0

    @classmethod
    def of(cls, config: RunConfig) -> "RunText":
        """Read the tokenizer of a run on rank 0, and send to all processes what they need of it. Collective.

        Raises:
            UserError: the prompt of the samples does not fit the context.
        """
        if not OBJECTIVES[config.objective.name].predicts_text:
            return cls()
        found = [cls()]

        def read() -> tuple[np.ndarray, tuple[int, ...]]:
            found[0] = cls._read(config)
            return found[0].bytes, found[0].prompt

        counts, prompt = broadcast_from_rank0(read)
        return cls(counts, prompt, found[0].tokenizer)

    @classmethod
    def _read(cls, config: RunConfig) -> "RunText":
        sample = config.validation.sample
        try:
            found = find_run_tokenizer(config)
        except (UserError, OSError) as error:
            log.warning("warning: validations without bits per byte and sample text: %s", error)
            return cls()
        if found is None:
            if sample.prompt or sample.tokens:
                log.warning("warning: no sample text: the run has no tokenizer; put it in %s/tokenizer", config.output)
            return cls()
        tokenizer = found[1]
        prompt: list[int] = []
        if sample_length(config):
            try:
                prompt = encode_prompts(tokenizer, [sample.prompt])[0]
            except UserError as error:
                log.warning("warning: no sample text: %s", error)
            if len(prompt) >= (limit := min(MAX_PROMPT, config.model.context)):
                found_tokens = f"validation.sample.prompt has {len(prompt)} tokens"
                raise UserError(f"{found_tokens}, and at most {limit - 1} are possible; shorten it")
        return cls(byte_counts(tokenizer, config.vocab), tuple(prompt), tokenizer)


class TaskScores(Protocol):
    """Scores of a run's weights on tasks, as `gpt2train.evaluate.task_validation` gives them."""

    def is_due(self, step: int) -> bool:
        """Return True after a step whose validation includes them."""

    def __call__(self) -> dict[str, float] | None:
        """Return the metrics by column, or None if a process received a stop request. Collective."""


class Validation:
    """Validation of the weights of a run on the first samples of the validation data, the same set on every layout.

    Raises:
        UserError: the prompt of the samples does not fit the context.

    Attributes:
        tokenizer: tokenizer of the run, on rank 0, if there is one.
        tasks: scores on tasks to add; none by default.
    """

    def __init__(self, engine: Engine, data: Dataset, stop: StopRequest) -> None:
        self._engine, self._data, self._stop = engine, data, stop
        self._count = min(engine.config.validation.samples, data.per_epoch)
        self._text = RunText.of(engine.config)
        self.tokenizer = self._text.tokenizer
        self.tasks: TaskScores | None = None
        self._warned = False  # of a column that is missing
        self._bytes: int | None = None if len(self._text.bytes) else 0  # of the validation set; None until counted

    def is_due(self, step: int) -> bool:
        """Return True after a step at the interval, and after the last one."""
        return step % self._engine.config.validation.interval == 0 or step == self._engine.config.steps

    def __call__(self, step: int) -> Measured | None:
        """Measure the mean loss per target, score the tasks that are due, and write a sample text. Collective.

        Returns:
            The loss as `valid_loss`, bits per byte as `valid_bits_per_byte` if the tokenizer is known, the metrics of
            the objective as `valid_<name>`, and those of tasks as `valid_task_<task>_<name>`; or None if a process
            received a stop request: the shutdown timeout is then left for the save.
        """
        started_at = time.perf_counter()
        totals = self._totals()
        if totals is None:
            return None
        config, counted = self._engine.config, self._data.counted(range(self._count))
        metrics = OBJECTIVES[config.objective.name].metrics(totals[1:], counted)
        columns = {"valid_loss": totals[0] / counted}
        if self._bytes:
            columns["valid_bits_per_byte"] = totals[0] / math.log(2) / self._bytes
        columns |= {f"valid_{name}": value for name, value in metrics.items()}
        if self.tasks is not None and self.tasks.is_due(step):
            scores = self.tasks()
            if scores is None:
                return None
            columns |= scores
        if self.tasks is None or self.tasks.is_due(step):
            self._warn_of_missing(columns)
        sample = self._sample()
        columns["validation_seconds"] = round(time.perf_counter() - started_at, 6)
        return Measured(columns, sample)

    def _warn_of_missing(self, columns: Mapping[str, float]) -> None:
        """Warn once of a column of `stop_at` that no validation has: its value would never be reached."""
        missing = sorted(self._engine.config.validation.stop_at.keys() - columns.keys())
        if missing and not self._warned and self._engine.ctx.is_rank0:
            shown = ", ".join(columns)
            log.warning("warning: validation.stop_at has %s, and a validation %s; correct it", missing[0], shown)
        self._warned = True

    def _totals(self) -> list[float] | None:
        """Sums of `Engine.evaluate` over the set; counts its bytes at the first call."""
        engine, layout, count = self._engine, self._engine.layout, self._count
        micro, own_bytes = layout.micro_batch, 0
        # Every process runs the same number of forwards, since a forward can communicate. Samples beyond the set are
        # padding: they fill the batch, and their targets are ignored.
        step = micro * layout.data
        starts = range(engine.data_rank * micro, -(-count // step) * step, step)
        totals = [0.0] * engine.sums
        for first in range(0, len(starts), CHUNK):
            if any_rank(self._stop.requested):
                return None
            chunk = starts[first : first + CHUNK]
            batches = [self._data.batch(range(start, start + micro), until=count) for start in chunk]
            if self._bytes is None:
                own_bytes += sum(_bytes(batch, self._text.bytes) for batch in batches)
            batches = [batch.to(engine.ctx.device) for batch in batches]
            totals = [total + part for total, part in zip(totals, engine.evaluate(batches), strict=True)]
        if self._bytes is None:
            total = torch.tensor(own_bytes)
            dist.all_reduce(total)
            # Every process of a pipeline and of a tensor-parallel group reads the same samples.
            self._bytes = int(total) * layout.data // engine.ctx.world
        return totals

    def _sample(self) -> Sample | None:
        """Write a sample text. Collective."""
        text, config = self._text, self._engine.config
        if not text.prompt:
            return None
        written = write_sample(self._engine, text.prompt, sample_length(config))
        if text.tokenizer is None:
            return None
        spelled = b"".join(token_bytes(text.tokenizer, token) for token in written)
        return Sample(config.validation.sample.prompt, spelled.decode(errors="replace"))


def _bytes(batch: Batch, table: np.ndarray) -> int:
    """Bytes of the targets of a batch that are not ignored."""
    targets = batch.targets.numpy()
    return int(table[targets[targets != IGNORE]].sum())
