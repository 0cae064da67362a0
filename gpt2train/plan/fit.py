"""Resource estimate of a run, and the check that this machine has the resources; does not import torch.

A Mac's GPU is taken for its CPU: it has the same memory, and the hours are too many. With `device = "mps"` they are not
checked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2train.config import TrainSettings, resolve_epochs
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.data.epoch import samples_in
from gpt2train.model.families import parameter_count
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.layout import Layout
from gpt2train.plan.activations import FP32
from gpt2train.plan.devices import Gpu, memory_of_cpu
from gpt2train.plan.duration import step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import Piece, pieces
from gpt2train.plan.recomputation import slowdown
from gpt2train.store.counts import count_of

# FLOP/s of a core in fp32 training: 0.75 of 83 to 94 GFLOP/s as matrix products (docs/develop/benchmarks.md)
CORE_FLOPS = 60e9
CPU_SLOWDOWN = {"fp32": 1, "bf16": 3, "fp16": 20}  # on a CPU without AVX512-BF16 or AMX
DEFAULT_TFLOPS = 100.0  # TFLOP/s assumed for an unknown GPU
MAX_CPU_HOURS = 7 * 24  # longer trainings on a CPU are probably a mistake
STATE_BYTES = 3 * FP32  # bytes per parameter in a checkpoint: weight and AdamW's two moments


@dataclass(frozen=True)
class ResourceEstimate:
    """Resources that a training takes on this machine."""

    layout: Layout  # layout of all processes
    on_gpu: bool  # True if each process on this machine can have its own GPU, as the engine decides
    gpus: tuple[Gpu, ...]  # GPUs of this machine that this process may use
    gpus_needed: int  # number of GPUs that the processes on this machine would use
    parameters: int  # parameters of the model
    memory: float  # peak memory in GB of the rank that needs most
    available_memory: float  # memory in GB available to a rank
    steps: int | None
    """Number of steps; None if `epochs` determines it and the number of training tokens is not known yet."""
    tokens: int | None  # tokens of all steps; None as `steps`
    hours: float | None  # time of all steps, without validation and saving; None as `steps`
    basis: str  # assumptions of the hours
    checkpoints: int  # maximum size in bytes of all checkpoints on the disk
    model: int  # size in bytes of the merged model


def estimate_resources(
    settings: TrainSettings,
    vocab: int,
    gpus: Sequence[Gpu],
    *,
    processes: int,
    nodes: int = 1,
    threads: int = 1,
    cores: int = 1,
    per_epoch: int | None = None,
    done: Sequence[tuple[int, int]] = (),
) -> ResourceEstimate:
    """Estimate the resources of a run with the model of `gpt2train plan`.

    Args:
        settings: settings of the run.
        vocab: vocabulary size.
        gpus: GPUs of this machine; the other machines of the job are assumed to be equal.
        processes: processes per machine.
        nodes: number of machines.
        threads: threads per process.
        cores: CPU cores of this machine.
        per_epoch: samples of an epoch of the training tokens, which `epochs` needs; None if it is not known yet.
        done: pairs (steps, samples per step) of the steps that the run has done.

    Raises:
        UserError: the layout does not fit the processes, the model or the batch.
    """
    shape, layout = settings.model.shape(vocab), Layout.of(settings, processes * nodes)
    on_gpu = settings.device != "cpu" and len(gpus) >= processes
    parts = pieces(settings, shape)
    where = settings if on_gpu else settings.model_copy(update={"device": "cpu"})
    memory = max(peak(where, shape, layout, piece, rank).device for rank, piece in enumerate(parts)) / GB
    batches = layout.batches.after(done)
    steps = _steps(settings, batches, per_epoch)
    tokens = None if steps is None else batches.samples_after(steps) * settings.model.context
    if on_gpu:
        per_token, available, basis = _on_gpus(settings, shape, layout, parts, gpus[:processes])
    else:
        busy = min(processes * threads, cores) * nodes
        per_token, basis = _on_cores(settings, shape, layout, busy)
        available = memory_of_cpu() / processes
    count = parameter_count(shape)
    kept = settings.checkpoints.keep + settings.checkpoints.keep_best + 1  # + 1 for the one being written
    written = kept if steps is None else min(kept, math.ceil(steps / settings.checkpoints.interval))
    return ResourceEstimate(
        layout=layout,
        on_gpu=on_gpu,
        gpus=tuple(gpus),
        gpus_needed=processes,
        parameters=count,
        memory=memory,
        available_memory=available,
        steps=steps,
        tokens=tokens,
        hours=None if tokens is None else tokens * per_token / 3600,
        basis=basis,
        checkpoints=written * STATE_BYTES * count,
        model=FP32 * count,
    )


def _on_gpus(
    settings: TrainSettings, shape: Shape, layout: Layout, parts: list[Piece], gpus: Sequence[Gpu]
) -> tuple[float, float, str]:
    """Seconds per token, GB that each of a machine's GPUs has for the run, and basis of the time."""
    known = [gpu.tflops for gpu in gpus if gpu.tflops is not None]
    hardware = Hardware(
        gpus=layout.world,
        gpus_per_node=len(gpus),
        memory=min(gpu.memory for gpu in gpus),
        tflops=min(known) if len(known) == len(gpus) else DEFAULT_TFLOPS,
    )
    step = step_time(settings, shape, layout, parts, hardware).total
    guess = "" if len(known) == len(gpus) else ", a guess for this GPU"
    speed = f"{hardware.tflops:g} TFLOP/s per GPU at {hardware.efficiency:.0%}"
    per_token = step / (layout.global_batch * settings.model.context)
    basis = f"a roofline of {speed}{guess} (docs/train/plan.md)"
    return per_token, hardware.memory * (1 - hardware.reserve), basis


def _on_cores(settings: TrainSettings, shape: Shape, layout: Layout, cores: int) -> tuple[float, str]:
    """Seconds per token on so many cores, and basis of the time."""
    rate = CORE_FLOPS / CPU_SLOWDOWN[settings.precision]
    flops = slowdown(settings, shape, layout.tp) * flops_per_token(shape, settings.model.context)
    on = count_of(cores, "core")
    basis = f"{rate / 1e9:.0f} GFLOP/s per core in {settings.precision} on {on} (docs/operate/budget.md)"
    return flops / (cores * rate), basis


def missing_resources(fit: ResourceEstimate, settings: TrainSettings) -> list[str]:
    """List all resources that the machine lacks for a run; empty if it fits.

    `device = "cpu"` is an explicit choice: then the time is not checked.
    """
    missing = []
    slow = fit.hours is not None and fit.hours > MAX_CPU_HOURS and not fit.on_gpu
    if not fit.on_gpu and (settings.device == "cuda" or (settings.device == "auto" and slow)):
        found = f"{len(fit.gpus)} found" if fit.gpus else "none found"
        missing.append(f"{fit.gpus_needed} GPU{'s' * (fit.gpus_needed > 1)} ({found})")
        if fit.hours is not None and slow:
            missing.append(f"time (about {duration(fit.hours)} on this CPU)")
    if fit.memory > fit.available_memory and settings.device != "cpu":
        kind = "GPU memory" if fit.on_gpu else "memory"
        missing.append(f"{kind} ({fit.memory:.1f} GB per process, {fit.available_memory:.1f} GB available)")
    return missing


def duration(hours: float) -> str:
    """Format a time in minutes, hours, days or years."""
    if hours < 1.5:
        return count_of(max(1, round(60 * hours)), "minute")
    if hours < 72:
        return count_of(round(hours), "hour")
    return count_of(round(hours / 24), "day") if hours < 24 * 730 else f"{hours / 24 / 365:,.0f} years"


def planned_steps(settings: TrainSettings, layout: Layout, train_tokens: int | None) -> int | None:
    """Return the number of steps; None if `epochs` determines it and the number of training tokens is not known."""
    per_epoch = None if train_tokens is None else samples_in(train_tokens, settings.sample_length)
    return _steps(settings, layout.batches, per_epoch)


def _steps(settings: TrainSettings, batches: BatchPlan, per_epoch: int | None) -> int | None:
    if settings.epochs and per_epoch is None:
        return None
    return resolve_epochs(settings, per_epoch or 0, batches).steps
