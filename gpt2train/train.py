"""The training loop, and the entry of torchrun.

    python -m gpt2train.train --config run.toml                                  one process
    torchrun --nproc-per-node 2 -m gpt2train.train --config run.toml             two
    python -m gpt2train.train --preset 345m --config data.toml                   a file on top of a preset

A checkpoint in the run folder (`output` in the settings) is gone on from, with the same numbers as if nothing had
stopped. SIGTERM and Ctrl-C finish the step, save and end with exit code 0.
"""

import argparse
import contextlib
import hashlib
import logging
import math
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gpt2train.checkpoint import store
from gpt2train.checkpoint.resume import checkpoint_of, find_position, flat_state, save_run
from gpt2train.checkpoint.store import Position
from gpt2train.config import CONFIG_FILE, RunConfig, read_run_config, to_toml
from gpt2train.data.samples import Samples
from gpt2train.errors import RunError, UserError
from gpt2train.metrics import MetricsWriter, mfu, parameter_count
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.loss import IGNORE
from gpt2train.optim import clip, make_optimizer, set_learning_rate, squared_norm
from gpt2train.parallel.fsdp import accumulate, local_gradients, materialise, replicas, reshard, shard
from gpt2train.parallel.mesh import Place, data_mesh, from_first, join, together
from gpt2train.rank import StopRequest, end_at_once_on_bugs, exit_code, follow_launcher, leave, log_to, only_job_in
from gpt2train.schedule import learning_rate

log = logging.getLogger("gpt2train")

SKIPS_IN_A_ROW = 10  # a spike or two is survived; this many mean that the weights are lost
MANY_EPOCHS = 4  # beyond, repeated data is worth ever less (Muennighoff et al. 2023, "Scaling Data-Constrained LMs")


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="gpt2train.train", description="Train a GPT-2 on token files.")
    parser.add_argument("--config", required=True, metavar="FILE.toml", help="settings of the run (RunConfig)")
    parser.add_argument("--preset", help="settings below the file's: tiny, 117m, 345m, 762m, 1542m")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    options = parser.parse_args(argv)
    follow_launcher()
    rank = int(os.environ.get("RANK", 0))
    end_at_once_on_bugs(rank, options.debug)
    stop = StopRequest()
    stop.install()
    try:
        config = read_run_config(options.config, options.preset)
        place = join(config.device)
        log_to(Path(config.output) / "logs", rank)
        train(config, place, stop)
    except (UserError, RunError) as error:
        code = exit_code(error, rank, options.debug)
    else:
        code = 0
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


def train(config: RunConfig, place: Place, stop: StopRequest | None = None) -> Position:
    """Train until `config.steps` or until asked to stop; all processes of the group together.

    Raises:
        UserError: settings, data and run folder do not go together; nothing was trained.
        RunError: a save failed, the checkpoints are damaged, or the loss is lost.
    """
    stop = stop or StopRequest()
    run = Path(config.output)
    with contextlib.ExitStack() as cleanup:
        together(lambda: cleanup.enter_context(only_job_in(run)) if place.is_first else None)
        accumulation = config.batch.accumulation(place.world)
        data = together(lambda: _open(config.data.train, config, config.seed, place))
        valid = together(lambda: _open(held_out, config, None, place)) if (held_out := config.data.valid) else None

        mesh = data_mesh(place, config.parallel.zero)
        with torch.device("meta"):
            model = GPT2(config.shape, config.model.dropout)
        shard(model, mesh, config.parallel.zero)
        materialise(model, place.device, config.seed)
        optimizer = make_optimizer(model, config.optimizer)

        position = from_first(lambda: find_position(config))
        if position.step:
            store.load(checkpoint_of(config, position), flat_state(model, optimizer))
        _introduce(config, place, accumulation, data, position)
        metrics = None
        if place.is_first:
            store.sweep(run)
            _write(run / CONFIG_FILE, to_toml(config))
            metrics = MetricsWriter(run, position.step, config.logging.tensorboard)
            cleanup.callback(metrics.close)

        skips = 0
        while position.step < config.steps:
            began = time.perf_counter()
            step = position.step + 1
            row, stopping = _step(config, place, mesh, model, optimizer, data, accumulation, position, stop)
            skips = skips + 1 if row["skipped"] > position.skipped else 0
            position = Position(
                step=step,
                samples=position.samples + config.batch.global_batch,
                updates=step - row["skipped"],
                skipped=row["skipped"],
            )
            seconds = time.perf_counter() - began
            row |= {"seconds": seconds, "tokens_per_second": config.batch.global_batch * data.context / seconds}
            if used := mfu(row["tokens_per_second"], config.shape, place.device, place.world):
                row["mfu"] = used
            last = step == config.steps or stopping
            if valid is not None and (step % config.validation.every == 0 or step == config.steps):
                row["valid_loss"] = validate(config, place, model, valid)
            if metrics is not None:
                metrics.write(row)
            if last or step == 1 or step % config.logging.every == 0 or "valid_loss" in row:
                log.info(_line(row, config.steps))
            if skips == SKIPS_IN_A_ROW:
                raise RunError(
                    f"the gradient was not finite in {skips} steps in a row, up to step {step}; lower optimizer.lr or "
                    f"raise schedule.warmup, and go on from the last checkpoint in {run / store.FOLDER}"
                )
            if last or step % config.checkpoints.every == 0:
                save_run(config, model, optimizer, position)
            if stopping:
                break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform != "darwin" else 30))
    log.info("peak memory of rank %d: %.2f GiB", place.rank, peak)
    if position.step < config.steps:
        log.info("stopped at step %d of %d; the same command goes on from there", position.step, config.steps)
    log.info("checkpoint: %s", checkpoint_of(config, position))
    return position


def _step(
    config: RunConfig,
    place: Place,
    mesh: DeviceMesh,
    model: GPT2,
    optimizer: torch.optim.Optimizer,
    data: Samples,
    accumulation: int,
    position: Position,
    stop: StopRequest,
) -> tuple[dict[str, Any], bool]:
    """One optimizer step; its row of metrics, and whether any process was asked to stop."""
    micro, tokens = config.batch.micro_batch, config.batch.global_batch * data.context
    torch.manual_seed(_dropout_seed(config.seed, position.step, place.rank))
    total = torch.zeros((), device=place.device)
    for turn in range(accumulation):
        first = position.samples + (turn * place.world + place.rank) * micro
        batch = torch.from_numpy(data.batch(range(first, first + micro))).to(place.device)
        accumulate(model, config.parallel.zero, last=turn == accumulation - 1)
        with _autocast(config, place):
            loss = model(batch[:, :-1], batch[:, 1:])
        (loss / tokens).backward()
        total += loss.detach()

    # One collective tells everybody the loss, the norm and whether to stop. A rank's infinite gradient makes the sum
    # not finite on all of them, so that all skip or none does. Replicated gradients are counted once.
    gradients = local_gradients(model)
    told = torch.stack(
        [total.double(), squared_norm(gradients) / replicas(mesh), total.new_tensor(stop.asked).double()]
    )
    dist.all_reduce(told)
    loss_sum, square, stopping = told.tolist()
    norm = math.sqrt(square) if square >= 0 else math.nan
    lr = learning_rate(
        position.updates,
        updates=config.steps,
        warmup=config.schedule.warmup,
        peak=config.optimizer.lr,
        floor=config.schedule.min_lr,
    )
    good = math.isfinite(norm)
    if good:
        clip(gradients, norm, config.optimizer.clip)
        set_learning_rate(optimizer, lr)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    row = {
        "step": position.step + 1,
        "loss": loss_sum / tokens,
        "grad_norm": norm,
        "lr": lr if good else 0.0,
        "tokens": (position.samples + config.batch.global_batch) * data.context,
        "skipped": position.skipped + (not good),
    }
    return row, stopping > 0


@torch.no_grad()
def validate(config: RunConfig, place: Place, model: GPT2, data: Samples) -> float:
    """Mean loss per token over the first samples of the validation file: the same set always and everywhere."""
    count, micro = min(config.validation.samples, data.per_epoch), config.batch.micro_batch
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=place.device)
    for start in range(place.rank * micro, _round_up(count, micro * place.world), micro * place.world):
        # Every process makes the same number of turns, since a forward can communicate; samples beyond the set are
        # there for the shape and count nothing.
        numbers = range(start, start + micro)
        batch = torch.from_numpy(data.batch([min(n, count - 1) for n in numbers])).to(place.device)
        targets = batch[:, 1:].masked_fill(torch.tensor([[n >= count] for n in numbers], device=place.device), IGNORE)
        with _autocast(config, place):
            total += model(batch[:, :-1], targets).double()
    model.train()
    reshard(model)
    dist.all_reduce(total)
    return total.item() / (count * data.context)


def _open(prefix: str, config: RunConfig, seed: int | None, place: Place) -> Samples:
    """Open a token file; the processes share the work of looking at every token."""
    samples = Samples(prefix, config.model.context, config.vocab, seed)
    samples.check_vocabulary(place.rank, place.world)
    return samples


def _introduce(config: RunConfig, place: Place, accumulation: int, data: Samples, position: Position) -> None:
    batch, parameters = config.batch, parameter_count(config.shape)
    log.info(
        "%s parameters, %s, %d processes on %s, batch %d = %d x %d x %d, ZeRO %d",
        f"{parameters:,}",
        config.precision,
        place.world,
        place.device.type,
        batch.global_batch,
        batch.micro_batch,
        place.world,
        accumulation,
        config.parallel.zero,
    )
    epochs = config.steps * batch.global_batch / data.per_epoch
    log.info("%s tokens, %.2f epochs in %d steps", f"{data.tokens:,}", epochs, config.steps)
    if epochs > MANY_EPOCHS:
        log.warning("warning: %.1f epochs; beyond %d repeated data helps ever less", epochs, MANY_EPOCHS)
    if config.schedule.warmup > config.steps / 2:
        log.warning("warning: the warm-up takes %d of %d steps", config.schedule.warmup, config.steps)
    if position.step:
        log.info("going on from step %d", position.step)


def _line(row: dict[str, Any], steps: int) -> str:
    parts = [
        f"step {row['step']}/{steps}",
        f"loss {row['loss']:.4f}",
        f"grad {row['grad_norm']:.2f}",
        f"lr {row['lr']:.2e}",
        f"{row['tokens_per_second']:,.0f} tokens/s",
    ]
    parts += [f"MFU {row['mfu']:.1%}"] if "mfu" in row else []
    parts += [f"skipped {row['skipped']}"] if row["skipped"] else []
    parts += [f"valid {row['valid_loss']:.4f}"] if "valid_loss" in row else []
    return " | ".join(parts)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _autocast(config: RunConfig, place: Place) -> torch.autocast:
    return torch.autocast(place.device.type, dtype=torch.bfloat16, enabled=config.precision == "bf16")


def _dropout_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/dropout/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


if __name__ == "__main__":
    leave(main())
