"""Logging of a training run: header, metrics and a log line per step, and warnings.

Rank 0 prints and writes metrics; every rank keeps its own log file.
"""

import contextlib
import itertools
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpt2train.checkpoint.manifest import StoredCorpus
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.data.dataset import Dataset
from gpt2train.model.families import parameter_count
from gpt2train.monitoring import metrics, samples
from gpt2train.monitoring.gpu_meter import gpu_meter
from gpt2train.monitoring.memory_report import peak_resident
from gpt2train.monitoring.metrics import MetricsWriter, keep_before, mfu
from gpt2train.monitoring.rank_report import RankReport, slowest_line
from gpt2train.monitoring.run_record import record_start
from gpt2train.monitoring.samples import SampleWriter
from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.monitoring.trackers import open_trackers
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext, all_or_raise
from gpt2train.store.counts import count_of
from gpt2train.store.files import make_way, set_aside, write_atomic
from gpt2train.store.progress import format_duration
from gpt2train.store.run_folder import RECORD
from gpt2train.training.phases import PHASES, PhaseTimer, phase_columns
from gpt2train.training.train_state import StepStats, TrainState
from gpt2train.training.validation import Sample

log = logging.getLogger("gpt2train")

GIB = 1 << 30
# Beyond this, repeated data helps less and less (Muennighoff et al. 2023, "Scaling Data-Constrained LMs").
MAX_EPOCHS = 4
RISES = 2  # consecutive increases of the validation loss, while the training loss falls


def log_run_header(
    config: RunConfig, ctx: DistContext, layout: Layout, data: Dataset, samples: int, warmup: int
) -> None:
    """Log the size of the model, the layout, the data and the number of epochs, and warnings about the settings.

    The samples are those of the whole run, the warm-up is in updates.
    """
    fp8, shape = config.performance.fp8, config.shape
    padded = f" (vocabulary {shape.vocab:,} padded to {shape.padded_vocab:,})"
    log.info(
        "%s parameters%s, %s, %s on %s, %s, batch %d = %d x %d x %d, ZeRO %d",
        f"{parameter_count(shape):,}",
        padded if shape.padded_vocab > shape.vocab else "",
        config.precision if fp8 == "off" else f"{config.precision} with fp8 {fp8}",
        count_of(ctx.world, "process"),
        ctx.device.type,
        layout,
        layout.global_batch,
        layout.micro_batch,
        layout.data,
        layout.accumulation,
        config.parallel.zero,
    )
    corpora = data.epochs(samples)
    for name, tokens, epochs in corpora:
        log.info("%s: %s tokens, %.2f epochs in %s", name, f"{tokens:,}", epochs, count_of(config.steps, "step"))
    for warning in warn_before_start(config, warmup, [(name, epochs) for name, _, epochs in corpora]):
        log.warning("warning: %s", warning)
    if fp8 != "off" and ctx.device.type == "cpu":
        log.warning("warning: performance.fp8 is slower than bf16 on a CPU; use it there for tests alone")


class RunLogger:
    """Logger of a run that starts from a train state: metrics.jsonl and trackers on rank 0, log lines on every rank.

    Args:
        config: settings of the run.
        ctx: distributed context.
        state: train state from which the run continues.
        layout: layout of the run.
        corpora: training corpora.
        per_epoch: samples of an epoch of the training tokens.
        source: model or checkpoint that the run has just begun from, if any.

    Raises:
        UserError: on all processes, if a requested tracker is not installed.
    """

    def __init__(
        self,
        config: RunConfig,
        ctx: DistContext,
        state: TrainState,
        layout: Layout,
        corpora: Sequence[StoredCorpus],
        per_epoch: int,
        source: str = "",
    ) -> None:
        self._config, self._ctx, self._per_epoch = config, ctx, per_epoch
        self._since_line: list[dict[str, Any]] = []  # metrics of the steps since the last log line
        self._samples: SampleWriter | None = None
        self._metrics = all_or_raise(lambda: self._open(state, layout, corpora, source) if ctx.is_rank0 else None)
        self._ranks = RankReport(ctx, config.logging.interval, gpu_meter(ctx.device))
        self._time_left = TimeLeft(self._metrics.rows if self._metrics is not None else ())

    def _open(self, state: TrainState, layout: Layout, corpora: Sequence[StoredCorpus], source: str) -> MetricsWriter:
        run, device = Path(self._config.output), self._ctx.device
        config, settings = run / CONFIG_FILE, to_toml(self._config).encode()
        make_way(config, run / metrics.FILE, run / samples.FILE)
        is_own = state.step or (run / RECORD).exists() or not config.exists() or config.read_bytes() == settings
        if not is_own:
            log.warning("warning: %s is not that of a run; it is kept in %s", config, set_aside(config))
        write_atomic(config, settings)
        record_start(
            self._config,
            state.step,
            world=self._ctx.world,
            layout=str(layout),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            corpora=[(corpus.identity, corpus.tokens, corpus.share) for corpus in corpora],
            source=source,
        )
        if not state.step:
            for file in (metrics.FILE, samples.FILE):
                keep_before(run / file, self._config.checkpoints.interval)
        self._samples = SampleWriter(run, state.step)
        return MetricsWriter(run, state.step, open_trackers(self._config, state.step))

    def row(self, state: TrainState, stats: StepStats, *, lr: float, tokens: int, seconds: float) -> dict[str, Any]:
        """Metrics of the step that led to `state`; `lr` is 0 if it was skipped, `tokens` are its counted targets."""
        length = self._config.model.context
        has_targets = tokens > 1 or stats.loss != 0 or stats.grad_norm != 0  # of none, 1 is counted
        if not has_targets:
            log.warning("warning: the batch of step %d has no target: all are masked, and it has no loss", state.step)
        on_gpu = self._ctx.device.type == "cuda"
        row: dict[str, Any] = {
            "step": state.step,
            "epoch": state.samples / self._per_epoch,
            "loss": stats.loss if has_targets else math.nan,
            "grad_norm": stats.grad_norm,
            "lr": lr,
            "tokens": state.samples * length,
            "skipped": state.skipped,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "memory_gib": (torch.cuda.max_memory_allocated(self._ctx.device) if on_gpu else peak_resident()) / GIB,
        }
        if used := mfu(row["tokens_per_second"], self._config.shape, length, self._ctx.device, self._ctx.world):
            row["mfu"] = used
        if self._config.objective.z_loss:
            row["z_loss"] = stats.z_loss
        if state.scale:
            row["loss_scale"] = state.scale.value  # loss scale of the next step
        return row

    def write(self, row: dict[str, Any], last: bool, sample: Sample | None = None) -> None:
        """Write a row of metrics, and a log line at the logging interval, at a validation and at the last step.

        The sample text of a validation, if there is one, gets a line of its own. Collective: all processes call it
        after each step.
        """
        row |= self._ranks(row, last)
        if self._metrics is not None:
            if sample is not None and self._samples is not None:  # first: a reader of the row finds its sample
                self._samples.write(row["step"], sample.prompt, sample.text)
            self._metrics.write(row)
            if "valid_loss" in row and (warning := overfitting_warning(self._metrics.rows)):
                log.warning("warning: %s", warning)
            if line := epoch_line(self._metrics.rows):
                log.info(line)
        self._since_line.append(row)
        self._time_left.add(row)
        due = last or row["step"] == 1 or row["step"] % self._config.logging.interval == 0
        if due or "valid_loss" in row:
            log.info(step_line(row, self._config.steps, self._time_left.seconds(self._config.steps)))
            log.info("; ".join(filter(None, [phase_line(self._since_line), slowest_line(row, self._ranks.hosts)])))
            self._since_line = []
        if sample is not None:
            log.info(sample_line(sample.prompt, sample.text))

    def close(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Flush and close, after an error of this kind, if any: a second signal does not wait for trackers."""
        if self._metrics is not None:
            self._metrics.close(wait=kind is not KeyboardInterrupt)


class StepTimer:
    """Timer of steps and of their phases; validation and saves do not count.

    Args:
        phases: timer of the phases.

    Attributes:
        phase_columns: metrics of the phases in the last lap.
    """

    def __init__(self, phases: PhaseTimer) -> None:
        self._phases = phases
        self.phase_columns: dict[str, float] = {}
        self.restart()

    def lap(self) -> float:
        """Seconds since the last lap; the next step begins now."""
        seconds = time.perf_counter() - self._started_at
        self._started_at += seconds
        self.phase_columns = phase_columns(self._phases.lap())
        return seconds

    def restart(self) -> None:
        """Begin the step now."""
        self._started_at = time.perf_counter()
        self._phases.restart()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block."""
        paused_at = time.perf_counter()
        with self._phases.paused():
            yield
        self._started_at += time.perf_counter() - paused_at


def step_line(row: dict[str, Any], steps: int, seconds_left: float | None = None) -> str:
    """Format the metrics of a step, and the time left until the last step, as a log line."""
    parts = [
        f"step {row['step']}/{steps}",
        f"loss {row['loss']:.4f}",
        f"grad {row['grad_norm']:.2f}",
        f"lr {row['lr']:.2e}",
        f"{row['tokens_per_second']:,.0f} tokens/s",
    ]
    parts += [f"MFU {row['mfu']:.1%}"] if "mfu" in row else []
    parts += [f"{row['memory_gib']:.2f} GiB"]
    parts += [f"GPU {row['gpu_utilization']:.0%} {row['gpu_watts']:,.0f} W"] if "gpu_watts" in row else []
    parts += [f"scale 2^{math.log2(row['loss_scale']):.0f}"] if "loss_scale" in row else []
    parts += [f"skipped {row['skipped']}"] if row["skipped"] else []
    parts += [f"valid {row['valid_loss']:.4f}"] if "valid_loss" in row else []
    scores = [name for name in row if name.startswith("valid_") and name != "valid_loss"]
    parts += [f"{name.removeprefix('valid_')} {row[name]:.4f}" for name in scores]
    parts += [f"{format_duration(seconds_left)} left"] if seconds_left else []
    return " | ".join(parts)


def epoch_line(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Format the mean loss of the epoch that the last step has ended, as a log line; None if it has ended none.

    An epoch of a single step has no line of its own.
    """
    if len(rows) < 2 or "epoch" not in rows[-1]:
        return None
    ended, before = int(rows[-1]["epoch"]), rows[-2].get("epoch", 0.0)
    if ended != int(before) + 1:
        return None
    starts = [0.0, *(row.get("epoch", 0.0) for row in rows)]  # a step belongs to the epoch in which it starts
    steps = [row for row, start in zip(rows, starts, strict=False) if start >= ended - 1]
    losses = [row["loss"] for row in steps if row.get("loss") is not None]
    if len(steps) < 2 or not losses:
        return None
    valid = next((f", valid {row['valid_loss']:.4f}" for row in steps if row.get("valid_loss") is not None), "")
    mean = sum(losses) / len(losses)
    return f"epoch {ended} | steps {steps[0]['step']} to {steps[-1]['step']} | mean loss {mean:.4f}{valid}"


def sample_line(prompt: str, text: str) -> str:
    """Format a sample text as a log line; control characters are escaped."""
    written = json.dumps(text, ensure_ascii=False)
    return f"sample: {written}" if not prompt else f"sample: {json.dumps(prompt, ensure_ascii=False)} -> {written}"


def phase_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the mean seconds of a step in each phase, and its share, over some steps, as a log line."""
    means = {name: sum(row.get(f"{name}_seconds", 0.0) for row in rows) / len(rows) for name in PHASES}
    total = sum(means.values()) or 1.0
    parts = [f"{name} {_short(mean)} {mean / total:.0%}" for name, mean in means.items() if mean]
    return f"a step takes {_short(total)}: {', '.join(parts)}"


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def warn_before_start(config: RunConfig, warmup: int, epochs: Iterable[tuple[str, float]]) -> list[str]:
    """Warnings about settings before the first step, from the warm-up in updates and the epochs of each corpus."""
    found = [
        f"{count:.1f} epochs of {name}; beyond {MAX_EPOCHS} epochs repeated data helps less and less"
        for name, count in epochs
        if count > MAX_EPOCHS
    ]
    if warmup > config.steps / 2:
        found.append(f"the warm-up takes {warmup} of {config.steps} steps; schedule.warmup is usually below a tenth")
    return found


def overfitting_warning(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Warning of overfitting: the validation loss rises while the training loss falls; None otherwise.

    Args:
        rows: metrics of the run so far; the last row has a validation loss.
    """
    at = [i for i, row in enumerate(rows) if row.get("valid_loss") is not None]
    if len(at) < RISES + 2:
        return None
    means = []  # mean training loss between two validations, since single steps are noisy
    for first, last in zip(at[-RISES - 2 :], at[-RISES - 1 :], strict=False):
        losses = [row["loss"] for row in rows[first + 1 : last + 1] if row.get("loss") is not None]
        if not losses:
            return None
        means.append(sum(losses) / len(losses))
    valid = [rows[i]["valid_loss"] for i in at[-RISES - 1 :]]
    rising = all(a < b for a, b in itertools.pairwise(valid))
    falling = all(a > b for a, b in itertools.pairwise(means))
    if not (rising and falling):
        return None
    best = min((rows[i] for i in at), key=lambda row: row["valid_loss"])
    return (
        f"overfitting: the validation loss has risen {RISES} times in a row ({valid[0]:.4f} to {valid[-1]:.4f}) while "
        f"the training loss fell; the lowest was at step {best['step']} ({best['valid_loss']:.4f})"
    )
