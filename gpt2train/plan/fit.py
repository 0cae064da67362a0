"""Whether a run fits the machine it is started on: what it takes, and the sum of what is missing. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.metrics import flops_per_token, parameter_count
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.devices import Gpu, memory_of_cpu
from gpt2train.plan.duration import AGAIN, step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import FP32, peak
from gpt2train.plan.parameters import pieces

CORE = 60e9  # FLOP/s of a core in fp32 training: 0.75 of 83 to 94 GFLOP/s as plain products (docs/benchmarks.md)
SLOWER = {"fp32": 1, "bf16": 3, "fp16": 20}  # on a CPU without AVX512-BF16 or AMX
UNKNOWN = 100.0  # TFLOP/s taken for a GPU that is in no table
LONGEST = 7 * 24  # hours that a training on a CPU may take before it is taken for a mistake
STATE = 3 * FP32  # bytes of a parameter in a checkpoint: weight and AdamW's two means


@dataclass(frozen=True)
class Fit:
    """What a training takes on this machine.

    Attributes:
        layout: over all processes.
        on_gpu: as the engine decides: where each process here can have a GPU of its own.
        found: GPUs of this machine that this process may use.
        wanted: GPUs that the processes on this machine would take.
        parameters: of the model.
        memory: GB of the fullest rank at its peak.
        room: GB that a rank can have.
        tokens: to train on in all steps.
        hours: of all steps, without validation and saving.
        basis: what the hours rest on.
        checkpoints: bytes of the checkpoints that lie on the disk at once.
        model: bytes of the merged model.
    """

    layout: Layout
    on_gpu: bool
    found: tuple[Gpu, ...]
    wanted: int
    parameters: int
    memory: float
    room: float
    tokens: int
    hours: float
    basis: str
    checkpoints: int
    model: int


def weigh(
    settings: TrainSettings,
    vocab: int,
    gpus: Sequence[Gpu],
    *,
    processes: int,
    nodes: int = 1,
    threads: int = 1,
    cores: int = 1,
) -> Fit:
    """What a run takes, by the arithmetic of `gpt2train plan`.

    Args:
        vocab: tokens of the tokenizer.
        gpus: those of this machine; the other machines of the job are taken to be like it.
        processes: on each machine.
        nodes: machines.
        threads: of each process.
        cores: of this machine.

    Raises:
        UserError: the layout does not fit the processes, the model or the batch.
    """
    shape = Shape(vocab, settings.model.layers, settings.model.heads, settings.model.hidden, settings.model.context)
    layout = Layout.of(settings, processes * nodes)
    on_gpu = settings.device != "cpu" and len(gpus) >= processes
    parts = pieces(settings, shape)
    where = settings if on_gpu else settings.model_copy(update={"device": "cpu"})
    memory = max(peak(where, shape, layout, piece, rank).device for rank, piece in enumerate(parts)) / GB
    tokens = _tokens(settings, layout)
    if on_gpu:
        used = gpus[:processes]
        known = [gpu.tflops for gpu in used if gpu.tflops is not None]
        hardware = Hardware(
            gpus=layout.world,
            gpus_per_node=processes,
            memory=min(gpu.memory for gpu in used),
            tflops=min(known) if len(known) == len(used) else UNKNOWN,
        )
        step = step_time(settings, shape, layout, parts, hardware).total
        seconds = tokens / (layout.global_batch * shape.context) * step
        room = hardware.memory * (1 - hardware.reserve)
        said = "" if len(known) == len(used) else ", a guess for this GPU"
        basis = f"a roofline of {hardware.tflops:g} TFLOP/s a GPU at {hardware.efficiency:.0%}{said} (docs/plan.md)"
    else:
        busy = min(processes * threads, cores) * nodes
        flops = tokens * flops_per_token(shape) * (1 + AGAIN[settings.parallel.activation_checkpointing])
        rate = CORE / SLOWER[settings.precision]
        seconds, room = flops / (busy * rate), memory_of_cpu() / processes
        basis = f"{rate / 1e9:.0f} GFLOP/s a core in {settings.precision} on {busy} cores (docs/budget.md)"
    count = parameter_count(shape)
    kept = settings.checkpoints.keep + settings.checkpoints.keep_best + 1  # and the one that is being written
    written = min(kept, math.ceil(settings.steps / settings.checkpoints.every))
    return Fit(
        layout=layout,
        on_gpu=on_gpu,
        found=tuple(gpus),
        wanted=processes,
        parameters=count,
        memory=memory,
        room=room,
        tokens=tokens,
        hours=seconds / 3600,
        basis=basis,
        checkpoints=written * STATE * count,
        model=FP32 * count,
    )


def lacking(fit: Fit, settings: TrainSettings) -> list[str]:
    """What the machine lacks for this run, all of it; empty where it fits.

    With `device = "cpu"` the user has decided: then it may take as long as it likes.
    """
    lacks = []
    slow = fit.hours > LONGEST and not fit.on_gpu
    if not fit.on_gpu and (settings.device == "cuda" or (settings.device == "auto" and slow)):
        found = f"{len(fit.found)} found" if fit.found else "none found"
        lacks.append(f"{fit.wanted} GPU{'s' * (fit.wanted > 1)} ({found})")
        if slow:
            lacks.append(f"time (about {duration(fit.hours)} on this CPU)")
    if fit.memory > fit.room and settings.device != "cpu":
        kind = "GPU memory" if fit.on_gpu else "memory"
        lacks.append(f"{kind} ({fit.memory:.1f} GB a process, {fit.room:.1f} GB can be had)")
    return lacks


def duration(hours: float) -> str:
    """A time in the unit that fits it."""
    if hours < 1.5:
        minutes = max(1, round(60 * hours))
        return f"{minutes} minute{'s' * (minutes > 1)}"
    if hours < 72:
        return f"{hours:.0f} hours"
    return f"{hours / 24:,.0f} days" if hours < 24 * 730 else f"{hours / 24 / 365:,.0f} years"


def _tokens(settings: TrainSettings, layout: Layout) -> int:
    """Tokens of all steps; with a ramp-up the first ones are smaller."""
    if layout.ramp_up is None:
        return settings.steps * layout.global_batch * settings.model.context
    samples = 0
    for _ in range(settings.steps):
        samples += layout.batches.size_at(samples)
    return samples * settings.model.context
