"""Training loop and entry point of torchrun.

    python -m gpt2train.train --config run.toml                                  one process
    torchrun --nproc-per-node 2 -m gpt2train.train --config run.toml             two
    srun --ntasks 8 python -m gpt2train.train --config run.toml                  eight, on the machines of a Slurm job
    python -m gpt2train.train --preset 345m --config data.toml                   a file on top of a preset
    python -m gpt2train.train --config run.toml --set optimizer.lr=3e-4          one setting changed

A run whose folder (`output` in the settings) holds a checkpoint resumes from it and computes the same numbers as an
uninterrupted run. On SIGTERM, SIGUSR1 or Ctrl-C it finishes the step, saves a checkpoint and exits with code 0.
"""

import argparse
import contextlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.compat.torch import around_waits
from gpt2train.config import RunConfig, read_run_config, resolve_epochs
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.data.batch import PREFETCH_STEPS, StepBatch, prefetch
from gpt2train.data.dataset import Dataset, open_data
from gpt2train.errors import RunError, UserError
from gpt2train.launch import rank_process, rank_store
from gpt2train.launch.hang_report import record_nccl
from gpt2train.launch.process_env import ProcessEnv, likely_rank, read_process_env
from gpt2train.launch.rank_logs import divert_native_stderr, drop_empty, log_to
from gpt2train.monitoring.memory_report import log_memory
from gpt2train.monitoring.profiler import Profiler
from gpt2train.monitoring.run_logger import RunLogger, StepTimer, log_run_header
from gpt2train.monitoring.run_record import find_early_stop, record_early_stop
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TIMEOUT, DistContext, all_or_raise, broadcast_from_rank0, first_of_ranks, join
from gpt2train.settings import parse_assignment
from gpt2train.store.process import CLOSING, ends_with_terminal, prepare_streams
from gpt2train.store.run_folder import checkpoint_step
from gpt2train.training import performance
from gpt2train.training.callbacks import CallbackList, RunView
from gpt2train.training.engine import Engine
from gpt2train.training.forward_backward import ForwardBackward, Passes
from gpt2train.training.lr_schedule import learning_rate, make_schedule
from gpt2train.training.skipped_steps import SkippedSteps, divergence_remedy
from gpt2train.training.train_state import StepStats, TrainState, is_plausible, is_sound
from gpt2train.training.validation import Validation

log = logging.getLogger("gpt2train")

MAX_TIMEOUT_SECONDS = 7 * 24 * 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit code."""
    prepare_streams()
    parser = _Parser(prog="gpt2train.train", description="Train a GPT-2 on token files.")
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="settings of the run (RunConfig)")
    parser.add_argument("--preset", help="settings that the file overrides: tiny, 117m, 345m, megatron-345m, …")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        dest="changes",
        help="change a setting of the file, such as optimizer.lr=3e-4; may be given several times",
    )
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
    rank_process.follow_launcher()
    has_terminal = ends_with_terminal()
    stop = rank_process.StopRequest()
    stop.install()
    env = ProcessEnv()  # until the environment is known to be valid: each process reports its own
    rank_process.install_excepthook(likely_rank(os.environ), options.debug)
    try:
        env = read_process_env(os.environ)
        config = read_run_config(options.config, options.preset, [parse_assignment(text) for text in options.changes])
        logs = Path(config.output) / "logs"
        log_to(logs, env.rank, screen=not options.quiet)
        if has_terminal and env.rank == 0:
            log.info(CLOSING)
        divert_native_stderr(logs, env.rank)
        record_nccl(os.environ, logs)
        timeout = performance.collective_timeout(config.performance, timedelta(seconds=options.timeout))
        with stop.end_at_once(env):
            ctx = join(config.device, env, timeout)
        rank_store.answer_hangs()
        train(config, ctx, stop)
    except (UserError, RunError) as error:
        code = rank_process.exit_code(error, env, options.debug)
    else:
        code = 0
        drop_empty(logs, env.rank)
    if dist.is_initialized():
        dist.destroy_process_group()
        rank_store.leave()
    return code


def train(config: RunConfig, ctx: DistContext, stop: rank_process.StopRequest | None = None) -> TrainState:
    """Train until `config.steps`, `config.epochs` or a stop request, and return the last state.

    Collective: all processes call it.

    Raises:
        UserError: settings, layout, data and run folder do not fit together; nothing was trained.
        RunError: a save failed, all checkpoints are damaged, or the loss diverged.
    """
    stop = stop or rank_process.StopRequest()
    with contextlib.ExitStack() as cleanup:
        lock = rank_process.lock_run_folder(Path(config.output))
        all_or_raise(lambda: cleanup.enter_context(lock) if ctx.is_rank0 else None)
        layout = all_or_raise(lambda: Layout.of(config, ctx.world))
        all_or_raise(lambda: performance.check_mps(config, ctx.device))
        all_or_raise(lambda: performance.check_fp8(config.performance, ctx.device))
        data, valid_data = all_or_raise(lambda: _open(config, ctx))

        cleanup.enter_context(
            performance.fast_kernels(config.performance, ctx.device, performance.cudnn_is_wrong(config, ctx.device))
        )
        engine = Engine(config, ctx)
        checkpoints = cleanup.enter_context(CheckpointManager(config, data, valid_data))
        state = checkpoints.restore(engine.state(), open_initial_weights)
        batches = layout.batches.after(state.done)
        config = engine.config = checkpoints.config = all_or_raise(lambda: _with_length(config, data, batches, state))
        schedule = all_or_raise(lambda: make_schedule(config, batches, data.per_epoch))
        early = broadcast_from_rank0(lambda: find_early_stop(config, state.step))
        reason = early.reason if early else None  # for which the run ended before its last step
        last_step = state.step if early else config.steps
        log_run_header(config, ctx, layout, data, batches.samples_after(config.steps), schedule.warmup)
        _warn_of_missing_class(config, ctx)
        validation = None if valid_data is None else _validation(engine, valid_data, stop)
        run_logger = RunLogger(config, ctx, state, layout, checkpoints.corpora, data.per_epoch, checkpoints.source)
        cleanup.push(run_logger.close)
        profiler = Profiler(config.logging, config.output, ctx)
        cleanup.callback(profiler.close)
        ahead = PREFETCH_STEPS if config.performance.prefetch else 0
        loader = cleanup.enter_context(prefetch(_batches(data, engine, state), ahead))
        forward_backward = ForwardBackward(engine, loader)
        skipped = SkippedSteps(engine)
        callbacks = all_or_raise(lambda: CallbackList(RunView(config, ctx.rank, ctx.world, engine.model_parts, state)))
        callbacks("begin")
        all_or_raise(callbacks.check)
        accepted: Passes | None = None  # of the last step that was not skipped
        validated: dict[str, float] = {}  # scores of the present weights

        if ctx.device.type == "cpu":
            cleanup.enter_context(around_waits(lambda: engine.phases("communication")))
        timer = StepTimer(engine.phases)
        for step in range(first_step := state.step + 1, last_step + 1):
            profiler.step()
            passes = forward_backward(state)
            tokens = passes.batch.targets
            stop_here = stop.requested or checkpoints.failed or callbacks.stopping
            pending = engine.measure(passes.loss, tokens, passes.scale, stop_here)
            spike = config.spikes.threshold_sigma > 0 and state.is_spike(pending.read(), config)
            if checkpoints.due and not spike and is_sound(pending.read(), config):
                # These statistics belong to the weights of the previous step, which are still in place.
                with timer.paused():
                    checkpoints.save_due(engine.state(), state, validated)

            lr = learning_rate(state.updates, schedule)
            engine.update(pending, lr, skip=spike)
            forward_backward.start_next(step)  # before the wait for the statistics of this step
            stats = pending.read()
            previous, state = state, state.advance(stats, passes.batch.samples, config)
            if state.updates > previous.updates:
                accepted, validated = passes, {}
            else:
                lr = 0.0
                skipped.report(state, pending)

            row = run_logger.row(state, stats, lr=lr, tokens=tokens, seconds=timer.lap())
            row |= timer.phase_columns | checkpoints.seconds()
            stopping = stats.stop
            measured = None
            if validation is not None and not stopping and validation.is_due(step):
                with timer.paused():
                    measured = validation(step)
                stopping = measured is None
                if measured is not None:
                    row |= (validated := measured.columns)
                    reason = measured.reached(config.validation.stop_at) if step < config.steps else None
            last = stopping or reason is not None or step == config.steps
            run_logger.write(row, last, measured.sample if measured else None)
            callbacks("step", state=state, row=dict(row))
            if "valid_loss" in row:
                callbacks("validation")
            callbacks.saved(checkpoints.take_written())
            skipped.check(state, checkpoints.newest)
            checkpoints.due |= step % config.checkpoints.interval == 0
            checkpoints.due |= "valid_loss" in row and config.checkpoints.select == "best"
            if last:
                if stats.stop and step < config.steps:
                    reason = first_of_ranks(callbacks.stop_reason)
                final = forward_backward.started or forward_backward.probe(accepted or passes, state)
                _save_last(engine, checkpoints, state, validated, final, stopping and reason is None)
                break
            if forward_backward.started is None:
                timer.restart()
            if step == first_step:
                cleanup.enter_context(performance.freeze_gc())
                log_memory(ctx, layout, engine.parameters(), "after the first step")
                engine.fill_device()
        checkpoints.wait()
        callbacks.saved(checkpoints.take_written())
        callbacks("end")
        all_or_raise(callbacks.check)
        if reason is not None:
            all_or_raise(lambda: record_early_stop(config, state.step, reason) if ctx.is_rank0 else None)
        log_memory(ctx, layout, engine.parameters(), "at the end")
    _log_end(config, state, checkpoints, reason)
    return state


def _with_length(config: RunConfig, data: Dataset, batches: BatchPlan, state: TrainState) -> RunConfig:
    """Settings with `steps` computed from `epochs`; UserError if the state is beyond the last step."""
    resolved = resolve_epochs(config, data.per_epoch, batches)
    if state.step > resolved.steps:
        name, value = ("epochs", f"{config.epochs:g}") if config.epochs else ("steps", str(config.steps))
        at = f"step {state.step}" + (f" ({state.samples / data.per_epoch:.2f} epochs)" if config.epochs else "")
        raise UserError(f"{config.output} is at {at}, beyond {name} = {value}; raise {name} or give another output")
    return resolved


def _batches(data: Dataset, engine: Engine, state: TrainState) -> Iterator[StepBatch]:
    """Batches of the remaining steps, for this process."""
    layout, steps = engine.layout, engine.config.steps - state.step
    share = {"micro": layout.micro_batch, "rank": engine.data_rank, "ranks": layout.data}
    pin = engine.ctx.device.type == "cuda"
    return data.training_batches(layout.batches, state.samples, steps, **share, pin=pin)


def _save_last(
    engine: Engine,
    checkpoints: CheckpointManager,
    state: TrainState,
    validated: Mapping[str, float],
    passes: Passes,
    stopping: bool,
) -> None:
    """Check the weights after the last step by passes with them, and save them if they are sound.

    After a stop request, weights that are not sound are no error.

    Raises:
        RunError: the weights are not sound, or cannot be written.
    """
    pending = engine.measure(passes.loss, passes.batch.targets, passes.scale, stop=False)
    problem = _problem(engine, state, pending.read()) or checkpoints.save(engine.state(), state, validated)
    if problem and not stopping:
        remedy = divergence_remedy(checkpoints.newest)
        raise RunError(f"step {state.step} is not saved: {problem}; {remedy}")
    if problem:
        log.warning("step %d is not saved: %s", state.step, problem)


def _problem(engine: Engine, state: TrainState, stats: StepStats) -> str | None:
    """Return the reason not to save weights with these statistics, or None if they are sound."""
    config = engine.config
    if not math.isfinite(stats.loss):
        return "the loss is not finite"
    if not is_plausible(stats.loss, config):
        return f"the loss diverged ({stats.loss:.1f}, over twice that of a uniform guess)"
    if not math.isfinite(stats.grad_norm) and not state.lower_scale_may_help(config):
        return "the gradient is not finite"
    return None


def _log_end(config: RunConfig, state: TrainState, checkpoints: CheckpointManager, reason: str | None) -> None:
    """Log the last step of a run that was stopped, or that ended for a reason, and the newest checkpoint."""
    if reason is not None:
        log.info("finished at step %d of %d: %s", state.step, config.steps, reason)
    elif state.step < config.steps:
        then = "begins at step 0: nothing is saved"
        if checkpoints.newest is not None:
            saved = checkpoint_step(checkpoints.newest)
            then = "resumes from there" if saved == state.step else f"resumes from step {saved}"
        log.info("stopped at step %d of %d; the same command %s", state.step, config.steps, then)
    if checkpoints.newest is not None:
        log.info("checkpoint: %s", checkpoints.newest)


def _warn_of_missing_class(config: RunConfig, ctx: DistContext) -> None:
    """Warn on rank 0 of a model that transformers will not be able to load."""
    if ctx.is_rank0 and (missing := layout_of(config.model.family).missing_in_transformers(config.shape)):
        log.warning("warning: the merged model is for gpt2train alone: transformers has no class with %s", missing)


def _open(config: RunConfig, ctx: DistContext) -> tuple[Dataset, Dataset | None]:
    """Open the data and check them, such as every token against the vocabulary, each process a share of them."""
    data = open_data(config, "train")
    # Only of a run whose settings say so, since the steps that validate are known from them.
    valid = open_data(config, "valid") if config.data.may_validate else None
    if data is None:
        raise UserError(f"the objective {config.objective.name} has no training data; its `data` returned None")
    for split in (data, valid):
        if split is not None:
            split.check(ctx.rank, ctx.world)
    if valid is None and config.data.may_validate and ctx.is_rank0:
        log.warning("warning: no validation: data.split = %s leaves no sample for it", config.data.split)
    return data, valid


def _validation(engine: Engine, data: Dataset, stop: rank_process.StopRequest) -> Validation:
    """Return the validation of a run, with scores on its tasks."""
    validation = Validation(engine, data, stop)
    if engine.config.validation.tasks.names:
        from gpt2train.evaluate.task_validation import TaskValidation  # imports jinja2, unneeded without tasks

        validation.tasks = TaskValidation(engine, stop, validation.tokenizer)
    return validation


class _Parser(argparse.ArgumentParser):
    """Parser of a command line that reports a mistake in one line, as all commands do."""

    given: Sequence[str] = ()
    options: tuple[str, ...] = ()

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Keep the options for the message of an error."""
        self.options = (*self.options, *names)
        return super().add_argument(*names, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep the arguments for the message of an error."""
        self.given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message, or what takes the place of another system's option, and exit with code 2."""
        names = (word.partition("=")[0] for word in self.given if word.startswith("--"))
        if name := next((one for one in names if not any(option.startswith(one) for option in self.options)), None):
            from gpt2train.foreign.table import unknown_option

            self.exit(2, f"error: {unknown_option(name, self.options, sets=True)}\n")
        self.exit(2, f"error: {message}; --help lists the options\n")


def _seconds(text: str) -> float:
    """Parse a time limit from the command line."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds")
    return seconds


if __name__ == "__main__":
    rank_process.exit_without_teardown(main())
