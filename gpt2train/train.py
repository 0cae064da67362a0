"""Training loop and entry point of torchrun.

    python -m gpt2train.train --config run.toml                                  one process
    torchrun --nproc-per-node 2 -m gpt2train.train --config run.toml             two
    srun --ntasks 8 python -m gpt2train.train --config run.toml                  eight, on the machines of a Slurm job
    python -m gpt2train.train --preset 345m --config data.toml                   a file on top of a preset

A run whose folder (`output` in the settings) holds a checkpoint resumes from it and computes the same numbers as an
uninterrupted run. On SIGTERM or Ctrl-C it finishes the step, saves a checkpoint and exits with code 0.
"""

import argparse
import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.config import RunConfig, read_run_config
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.data.batch import Batch
from gpt2train.data.loader import PREFETCH_STEPS, prefetch, step_batches
from gpt2train.data.training_data import TrainingData, training_data, validation_data
from gpt2train.errors import RunError, UserError
from gpt2train.launch import rank_store
from gpt2train.launch.process_env import ProcessEnv, likely_rank, read_process_env
from gpt2train.launch.rank_logs import divert_native_stderr, drop_empty, log_to
from gpt2train.launch.rank_process import (
    StopRequest,
    exit_code,
    exit_without_teardown,
    follow_launcher,
    install_excepthook,
    lock_run_folder,
)
from gpt2train.monitoring.memory_report import log_memory
from gpt2train.monitoring.profiler import Profiler
from gpt2train.monitoring.run_logger import RunLogger, log_run_header
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TIMEOUT, DistContext, all_or_raise, any_rank, join
from gpt2train.training.engine import Engine
from gpt2train.training.lr_schedule import learning_rate, make_schedule
from gpt2train.training.performance import can_start_next_step, fast_kernels, freeze_gc
from gpt2train.training.train_state import TrainState, is_plausible

log = logging.getLogger("gpt2train")

MAX_TIMEOUT_SECONDS = 7 * 24 * 3600.0
VALIDATION_CHUNK = 8  # micro-batches between two checks for a stop request


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.train", description="Train a GPT-2 on token files.")
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="settings of the run (RunConfig)")
    parser.add_argument("--preset", help="settings that the file overrides: tiny, 117m, 345m, 762m, 1542m")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT.total_seconds(),
        help="seconds until an unresponsive process counts as lost",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="log to logs/rank-0.log only, for a launcher that follows the logs"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.parse_args(argv)
    follow_launcher()
    stop = StopRequest()
    stop.install()
    env = ProcessEnv(rank=(rank := likely_rank(os.environ)), local=rank)  # until the environment is known to be valid
    install_excepthook(env.rank, options.debug)
    try:
        env = read_process_env(os.environ)
        config = read_run_config(options.config, options.preset)
        logs = Path(config.output) / "logs"
        log_to(logs, env.rank, screen=not options.quiet)
        divert_native_stderr(logs, env.rank)
        ctx = join(config.device, env, timedelta(seconds=options.timeout))
        train(config, ctx, stop)
    except (UserError, RunError) as error:
        code = exit_code(error, env, options.debug)
    else:
        code = 0
        drop_empty(logs, env.rank)
    if dist.is_initialized():
        dist.destroy_process_group()
        rank_store.leave()
    return code


def train(config: RunConfig, ctx: DistContext, stop: StopRequest | None = None) -> TrainState:
    """Train until `config.steps` or a stop request. Collective: all processes of the group call it.

    Args:
        config: settings of the run.
        ctx: rank, world size and device of this process.
        stop: stop request of this process; a new one that nothing sets by default.

    Returns:
        The train state after the last step.

    Raises:
        UserError: settings, layout, data and run folder do not fit together; nothing was trained.
        RunError: a save failed, all checkpoints are damaged, or the loss diverged.
    """
    stop = stop or StopRequest()
    run = Path(config.output)
    with contextlib.ExitStack() as cleanup:
        all_or_raise(lambda: cleanup.enter_context(lock_run_folder(run)) if ctx.is_first else None)
        layout = all_or_raise(lambda: Layout.of(config, ctx.world))
        data, valid = all_or_raise(lambda: _open(config, ctx))
        schedule = all_or_raise(lambda: make_schedule(config, layout.batches))

        cleanup.enter_context(fast_kernels(config.performance, ctx.device))
        engine = Engine(config, ctx)
        checkpoints = cleanup.enter_context(CheckpointManager(config))
        state = checkpoints.restore(engine.state(), open_initial_weights)
        log_run_header(config, ctx, layout, data, schedule.warmup)
        run_logger = RunLogger(config, ctx, state, layout, checkpoints.corpora)
        cleanup.callback(run_logger.close)
        profiler = Profiler(config.logging, config.output, ctx)
        cleanup.callback(profiler.close)

        reason, first_step = "", state.step + 1
        due = False  # a save is due and waits for the next step's loss and gradient norm
        valid_loss: float | None = None
        unsaved: str | None = None
        prefetched = PREFETCH_STEPS if config.performance.prefetch else 0
        upcoming = cleanup.enter_context(prefetch(_steps(data, engine, state, config.steps), prefetched))
        started: tuple[int, int, Tensor] | None = None
        latest: list[Batch] = []
        accepted: list[Batch] = []  # batches of the last step that was not skipped

        def start(step: int, scale: float) -> tuple[int, int, Tensor]:
            size, tokens, batches = next(upcoming)
            latest[:] = [batch.to(ctx.device) for batch in batches]
            return size, tokens, engine.accumulate(latest, tokens, step, scale)

        started_at = time.perf_counter()
        while state.step < config.steps:
            profiler.step()
            step = state.step + 1
            micro_batches = layout.batches.size_at(state.samples) // layout.micro_batch
            scale, lr = state.loss_scale(config, micro_batches), learning_rate(state.updates, schedule)
            size, tokens, total = started or start(step, scale)
            stats = engine.measure(total, tokens, scale, stop.requested or checkpoints.failed)
            spike = config.spikes.threshold_sigma > 0 and state.is_spike(*stats.read()[:2], config)
            if due and not spike:
                loss, grad_norm, _ = stats.read()
                if math.isfinite(grad_norm) and is_plausible(loss, config.shape):
                    # This loss and gradient belong to the weights of the previous step, which are still in place.
                    save_started_at = time.perf_counter()
                    if unsaved := checkpoints.save(engine.state(), state, valid_loss):
                        log.warning("step %d is not saved: %s", state.step, unsaved)
                    due = False
                    started_at += time.perf_counter() - save_started_at
            engine.update(stats, lr, skip=spike)
            # Queue the next step on the device before waiting for this step's loss and gradient norm.
            started = start(step + 1, scale) if can_start_next_step(config, ctx.device, step) else None
            loss, grad_norm, stopping = stats.read()
            previous, state = state, state.advance(loss, grad_norm, size, config)
            updated = state.updates > previous.updates
            if updated:
                valid_loss = None  # it belongs to the previous weights
                accepted = latest[: layout.pp]
            else:
                why = "a spike" if math.isfinite(grad_norm) else f"{engine.culprit(stats)} is not finite"
                reason = reason if previous.consecutive_skipped else f"first in step {step}: {why}"
                log.warning("step %d skipped: %s", step, why)
            seconds = time.perf_counter() - started_at
            started_at += seconds
            row = run_logger.row(
                state,
                loss=loss,
                grad_norm=grad_norm,
                lr=lr if updated else 0.0,
                tokens=tokens,
                seconds=seconds,
            )
            row |= checkpoints.seconds()
            if valid is not None and not stopping and (step % config.validation.interval == 0 or step == config.steps):
                valid_loss = validate(config, engine, valid, stop)
                if valid_loss is None:
                    stopping = True
                else:
                    row["valid_loss"] = valid_loss
            last = step == config.steps or stopping
            run_logger.write(row, last)
            if state.consecutive_skipped >= config.spikes.max_skipped_steps:
                raise RunError(
                    f"loss diverged: {state.consecutive_skipped} steps in a row were skipped, up to step {step}; "
                    f"{reason}; {_remedy(checkpoints)}"
                )
            due |= step % config.checkpoints.interval == 0
            if last:
                targets = tokens / (layout.data * len(latest))
                unsaved = _divergence(engine, state, accepted or latest[: layout.pp], targets, started and started[2])
                unsaved = unsaved or checkpoints.save(engine.state(), state, valid_loss)
                if unsaved and not stopping:
                    raise RunError(f"step {step} is not saved: {unsaved}; {_remedy(checkpoints)}")
                if unsaved:
                    log.warning("step %d is not saved: %s", step, unsaved)
                break
            if started is None:
                started_at = time.perf_counter()
            if step == first_step:
                cleanup.enter_context(freeze_gc())
                log_memory(ctx, layout, engine.parameters(), "after the first step")
        checkpoints.wait()
        log_memory(ctx, layout, engine.parameters(), "at the end")
    if state.step < config.steps:
        source = "there" if not unsaved else "the last checkpoint"
        log.info("stopped at step %d of %d; the same command resumes from %s", state.step, config.steps, source)
    if checkpoints.newest is not None:
        log.info("checkpoint: %s", checkpoints.newest)
    return state


def _remedy(checkpoints: CheckpointManager) -> str:
    """Advice for a run whose loss diverged."""
    advice = "lower optimizer.lr or raise schedule.warmup, and"
    if checkpoints.newest is None:
        return f"{advice} start again: no checkpoint was saved"
    return f"{advice} resume from the last checkpoint, {checkpoints.newest}"


def _divergence(
    engine: Engine, state: TrainState, batches: Sequence[Batch], targets: float, total: Tensor | None
) -> str | None:
    """Check the weights after the last step, which no further step evaluates, before they are saved.

    Costs a forward and backward pass over one micro-batch (with a pipeline, over as many as there are stages), so that
    after a stop request most of the shutdown timeout is left for the save.

    Args:
        engine: model and optimizer.
        state: train state after the last step.
        batches: micro-batches of this process.
        targets: mean number of targets in a micro-batch that count in the loss.
        total: summed loss of the next step if it was already started; its gradients are then in place.

    Returns:
        The reason not to save the weights, or None if they are sound.
    """
    config, layout = engine.config, engine.layout
    if total is None:
        tokens = max(1, round(targets * len(batches) * layout.data))
        scale = state.loss_scale(config, len(batches) * layout.data)
        total = engine.accumulate(batches, tokens, state.step + 1, scale)
    else:
        tokens, scale = max(1, round(targets * layout.accumulation * layout.data)), 1.0  # no early start in fp16
    loss, grad_norm, _ = engine.measure(total, tokens, scale, stop=False).read()
    if not math.isfinite(loss):
        return "the loss is not finite"
    if not is_plausible(loss, config.shape):
        return f"the loss diverged ({loss:.1f}, over twice that of a uniform guess)"
    if not math.isfinite(grad_norm) and not state.lower_scale_may_help(config):
        return "the gradient is not finite"
    return None


def _steps(data: TrainingData, engine: Engine, state: TrainState, steps: int) -> Iterator[tuple[int, int, list[Batch]]]:
    """Yield the sample count, the count of targets and this process's micro-batches of each remaining step."""
    layout, on_gpu, first = engine.layout, engine.ctx.device.type == "cuda", state.samples
    for _ in range(state.step, steps):
        size = layout.batches.size_at(first)
        accumulation = size // (layout.micro_batch * layout.data)
        split = layout.micro_batch, accumulation, engine.data_rank, layout.data
        yield size, data.counted(range(first, first + size)), step_batches(data, first, *split, pin=on_gpu)
        first += size


def validate(config: RunConfig, engine: Engine, data: TrainingData, stop: StopRequest) -> float | None:
    """Mean loss per token over the first samples of the validation file, the same set on every layout.

    Returns:
        The loss, or None if a process received a stop request: the shutdown timeout is then left for the save.
    """
    layout = engine.layout
    count, micro = min(config.validation.samples, data.per_epoch), layout.micro_batch
    # Every process runs the same number of forwards, since a forward can communicate. Samples beyond the set are
    # padding: they fill the batch, and their targets are ignored.
    starts = range(engine.data_rank * micro, _round_up(count, micro * layout.data), micro * layout.data)
    total = 0.0
    for first in range(0, len(starts), VALIDATION_CHUNK):
        if any_rank(stop.requested):
            return None
        chunk = starts[first : first + VALIDATION_CHUNK]
        batches = [data.batch(range(start, start + micro), until=count).to(engine.ctx.device) for start in chunk]
        total += engine.evaluate(batches)
    return total / data.counted(range(count))


def _open(config: RunConfig, ctx: DistContext) -> tuple[TrainingData, TrainingData | None]:
    """Open the token files and check every token against the vocabulary, each process a share of them."""
    data, valid = training_data(config), validation_data(config)
    for split in (data, valid):
        if split is not None:
            split.check_vocabulary(ctx.rank, ctx.world)
    return data, valid


def _seconds(text: str) -> float:
    """Parse a time limit from the command line."""
    seconds = float(text)
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError
    return seconds


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


if __name__ == "__main__":
    exit_without_teardown(main())
