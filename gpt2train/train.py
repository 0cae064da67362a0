"""The training loop, and the entry of torchrun.

    python -m gpt2train.train --config run.toml                                  one process
    torchrun --nproc-per-node 2 -m gpt2train.train --config run.toml             two
    srun --ntasks 8 python -m gpt2train.train --config run.toml                  eight, on the machines of a Slurm job
    python -m gpt2train.train --preset 345m --config data.toml                   a file on top of a preset

A checkpoint in the run folder (`output` in the settings) is gone on from, with the same numbers as if nothing had
stopped. SIGTERM and Ctrl-C finish the step, save and end with exit code 0.
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

from gpt2train.checkpoint import store
from gpt2train.checkpoint.resume import checkpoint_of
from gpt2train.checkpoint.saver import Checkpoints
from gpt2train.checkpoint.store import Position
from gpt2train.cluster import Seat, find_seat, likely_rank
from gpt2train.config import RunConfig, read_run_config
from gpt2train.data.batch import Batch
from gpt2train.data.corpora import Corpora, training_data, validation_data
from gpt2train.data.loader import AHEAD, prefetch, step_batches
from gpt2train.engine import Engine
from gpt2train.errors import RunError, UserError
from gpt2train.logs import divert_native_stderr, drop_empty, log_to
from gpt2train.memory import tell_memory
from gpt2train.parallel import meeting
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TIMEOUT, Place, anyone, join, together
from gpt2train.profiling import Profiler
from gpt2train.progress import advance, is_spike, loss_scale
from gpt2train.rank import StopRequest, end_at_once_on_bugs, exit_code, follow_launcher, leave, only_job_in
from gpt2train.schedule import learning_rate, make_schedule
from gpt2train.speed import fast_kernels, overlaps, quiet_collector
from gpt2train.telling import Telling, introduce

log = logging.getLogger("gpt2train")

VALIDATION_TURNS = 8  # micro-batches between two looks at whether to stop


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.train", description="Train a GPT-2 on token files.")
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="settings of the run (RunConfig)")
    parser.add_argument("--preset", help="settings below the file's: tiny, 117m, 345m, 762m, 1542m")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT.total_seconds(), help="seconds until a silent process counts as lost"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="lines go to logs/rank-0.log alone, for a launcher that follows the logs"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.parse_args(argv)
    follow_launcher()
    stop = StopRequest()
    stop.install()
    seat = Seat(rank=(rank := likely_rank(os.environ)), local=rank)
    end_at_once_on_bugs(seat.rank, options.debug)
    try:
        seat = find_seat(os.environ)
        config = read_run_config(options.config, options.preset)
        logs = Path(config.output) / "logs"
        log_to(logs, seat.rank, screen=not options.quiet)
        divert_native_stderr(logs, seat.rank)
        place = join(config.device, seat, timedelta(seconds=options.timeout))
        train(config, place, stop)
    except (UserError, RunError) as error:
        code = exit_code(error, seat, options.debug)
    else:
        code = 0
        drop_empty(logs, seat.rank)
    if dist.is_initialized():
        dist.destroy_process_group()
        meeting.part()
    return code


def train(config: RunConfig, place: Place, stop: StopRequest | None = None) -> Position:
    """Train until `config.steps` or until asked to stop; all processes of the group together.

    Raises:
        UserError: settings, layout, data and run folder do not go together; nothing was trained.
        RunError: a save failed, the checkpoints are damaged, or the loss is lost.
    """
    stop = stop or StopRequest()
    run = Path(config.output)
    with contextlib.ExitStack() as cleanup:
        together(lambda: cleanup.enter_context(only_job_in(run)) if place.is_first else None)
        layout = together(lambda: Layout.of(config, place.world))
        data, valid = together(lambda: _open(config, place))
        schedule = together(lambda: make_schedule(config, layout.batches))

        cleanup.enter_context(fast_kernels(config.speed, place.device))
        engine = Engine(config, place)
        checkpoints = cleanup.enter_context(Checkpoints(config))
        position = checkpoints.restore(engine.state())
        introduce(config, place, layout, data, schedule.warmup)
        telling = Telling(config, place, position, layout, checkpoints.corpora)
        cleanup.callback(telling.close)
        profiler = Profiler(config.logging, config.output, place)
        cleanup.callback(profiler.close)

        reason, first_step = "", position.step + 1
        ahead = AHEAD if config.speed.prefetch else 0
        upcoming = cleanup.enter_context(prefetch(_steps(data, engine, position, config.steps), ahead))
        started: tuple[int, int, Tensor] | None = None

        def start(step: int, scale: float) -> tuple[int, int, Tensor]:
            size, tokens, batches = next(upcoming)
            return size, tokens, engine.accumulate([b.to(place.device) for b in batches], tokens, step, scale)

        began = time.perf_counter()
        while position.step < config.steps:
            profiler.step()
            step = position.step + 1
            micro_batches = layout.batches.size_at(position.samples) // layout.micro_batch
            scale, lr = loss_scale(position, config, micro_batches), learning_rate(position.updates, schedule)
            size, tokens, total = started or start(step, scale)
            measure = engine.measure(total, tokens, scale, stop.asked or checkpoints.failed)
            engine.update(measure, lr, skip=config.skip.sigma > 0 and is_spike(position, *measure.read()[:2], config))
            # The device has the next step to do before we wait for the numbers of this one.
            started = start(step + 1, scale) if overlaps(config, place.device, step) else None
            loss, grad_norm, stopping = measure.read()
            before, position = position, advance(position, loss, grad_norm, size, config)
            updated = position.updates > before.updates
            if not updated:
                why = "a spike" if math.isfinite(grad_norm) else f"{engine.culprit(measure)} is not finite"
                reason = reason if before.in_a_row else f"first in step {step}: {why}"
                log.warning("step %d skipped: %s", step, why)
            seconds = time.perf_counter() - began
            began += seconds
            row = telling.row(
                position,
                loss=loss,
                grad_norm=grad_norm,
                lr=lr if updated else 0.0,
                tokens=tokens,
                seconds=seconds,
            )
            row |= checkpoints.seconds()
            if valid is not None and not stopping and (step % config.validation.every == 0 or step == config.steps):
                valid_loss = validate(config, engine, valid, stop)
                if valid_loss is None:
                    stopping = True
                else:
                    row["valid_loss"] = valid_loss
            last = step == config.steps or stopping
            telling.write(row, last)
            if position.in_a_row >= config.skip.limit:
                raise RunError(
                    f"{position.in_a_row} steps in a row were skipped, up to step {step}; {reason}; lower "
                    f"optimizer.lr or raise schedule.warmup, and go on from the last checkpoint in {run / store.FOLDER}"
                )
            if last or step % config.checkpoints.every == 0:
                checkpoints.save(engine.state(), position, row.get("valid_loss"))
            if stopping:
                break
            if started is None:
                began = time.perf_counter()
            if step == first_step:
                cleanup.enter_context(quiet_collector())
                tell_memory(place, layout, engine.parameters(), "after the first step")
        checkpoints.wait()
        tell_memory(place, layout, engine.parameters(), "at the end")
    if position.step < config.steps:
        log.info("stopped at step %d of %d; the same command goes on from there", position.step, config.steps)
    log.info("checkpoint: %s", checkpoint_of(config, position))
    return position


def _steps(data: Corpora, engine: Engine, done: Position, steps: int) -> Iterator[tuple[int, int, list[Batch]]]:
    """Of each step that is still to do: its samples, its targets that count, and this process's micro-batches."""
    layout, on_gpu, first = engine.layout, engine.place.device.type == "cuda", done.samples
    for _ in range(done.step, steps):
        size = layout.batches.size_at(first)
        turns = size // (layout.micro_batch * layout.data)
        shares = layout.micro_batch, turns, engine.data_rank, layout.data
        yield size, data.counted(range(first, first + size)), step_batches(data, first, *shares, pin=on_gpu)
        first += size


def validate(config: RunConfig, engine: Engine, data: Corpora, stop: StopRequest) -> float | None:
    """Mean loss per token over the first samples of the validation file: the same set always and everywhere.

    None when a process was asked to stop meanwhile: the grace time is for the save.
    """
    layout = engine.layout
    count, micro = min(config.validation.samples, data.per_epoch), layout.micro_batch
    # Every process makes the same number of turns, since a forward can communicate; samples beyond the set are there
    # for the shape and count nothing.
    starts = range(engine.data_rank * micro, _round_up(count, micro * layout.data), micro * layout.data)
    total = 0.0
    for turn in range(0, len(starts), VALIDATION_TURNS):
        if anyone(stop.asked):
            return None
        some = starts[turn : turn + VALIDATION_TURNS]
        batches = [data.batch(range(start, start + micro), until=count).to(engine.place.device) for start in some]
        total += engine.evaluate(batches)
    return total / data.counted(range(count))


def _open(config: RunConfig, place: Place) -> tuple[Corpora, Corpora | None]:
    """Open the token files; the processes share the work of looking at every token."""
    data, valid = training_data(config), validation_data(config)
    for part in (data, valid):
        if part is not None:
            part.check_vocabulary(place.rank, place.world)
    return data, valid


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


if __name__ == "__main__":
    leave(main())
