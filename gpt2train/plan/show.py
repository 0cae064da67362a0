"""Terminal table of a plan."""

from collections.abc import Iterator

from rich.table import Table

from gpt2train.config import TrainSettings
from gpt2train.model.families import parameter_count
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.plan.budget import GOALS, Rate
from gpt2train.plan.fit import duration, planned_steps
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import Memory
from gpt2train.plan.search import Candidate, Plan, offload_of, shown
from gpt2train.store.counts import count_of

MAX_REASONS = 5


def headline(shape: Shape, hardware: Hardware) -> str:
    """Return the model and the hardware in one line."""
    speed = f"{hardware.tflops:g} TFLOP/s at {hardware.efficiency:.0%}"
    return f"{parameter_count(shape):,} parameters on {hardware.gpus} x {hardware.memory:g} GB, {speed}"


def summary(settings: TrainSettings, vocab: int, rate: Rate, on: Hardware | int) -> list[str]:
    """Return what a recipe has chosen, and how long it takes on GPUs or on a number of CPU cores, in lines."""
    model, batch, optimizer, schedule = settings.model, settings.batch, settings.optimizer, settings.schedule
    shape = model.shape(vocab)
    per_step = batch.global_batch * model.context
    tokens = settings.steps * per_step
    flops = tokens * flops_per_token(shape, model.context)
    speed = rate(settings.precision)
    count, kind = (on, "CPU core") if isinstance(on, int) else (on.gpus, "GPU")
    where = f"{count} {kind}{'s' * (count > 1)}"
    cost = f"{flops:.2e} FLOPs, {duration(flops / speed / 3600)} on {where} at {speed / 1e12:,.4g} TFLOP/s"
    if isinstance(on, Hardware) and on.price:
        cost += f", {flops / speed / 3600 * on.gpus * on.price:,.0f} at {on.price:g} for a GPU hour"
    return [
        f"model: depth {model.layers}, width {model.hidden}, {model.heads} heads of {shape.head_dim}, context "
        f"{model.context:,}, vocabulary {vocab:,}: {parameter_count(shape):,} parameters",
        f"training: {count_of(settings.steps, 'step')} of {count_of(per_step, 'token')} = {count_of(tokens, 'token')}, "
        f"{tokens / parameter_count(shape):.1f} for each parameter; {settings.precision}",
        f"optimizer: {optimizer.name}, learning rate {optimizer.lr:g}, warm-up {count_of(schedule.warmup, 'step')}, "
        f"warm-down over the last {round(schedule.decay_fraction * settings.steps):,}",
        f"cost: {cost}, without communication, validation and saving",
    ]


def goal_line(name: str, speed: float) -> str:
    """Return a goal of `GOALS`, and the range in which its cost is expected at a speed in FLOP/s."""
    goal = GOALS[name]
    hours = [duration(flops / speed / 3600) for flops in (goal.low, goal.high)]
    return (
        f"goal: {goal.what}, predicted from published runs on FineWeb-Edu, not measured here: {goal.flops:.1e} FLOPs, "
        f"and between {goal.low:.1e} ({hours[0]}) and {goal.high:.1e} ({hours[1]})"
    )


def with_columns(*names: str, left: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns are aligned at the right, but for some."""
    result = Table(box=None, pad_edge=False)
    for name in names:
        result.add_column(name, justify="left" if name in left else "right")
    return result


def table(plan: Plan, shape: Shape, hardware: Hardware, rows: int, train_tokens: int | None = None) -> Table:
    """Return a table of the best layouts, at most `rows`.

    The number of training tokens, which `epochs` needs for the hours, is None if it is not known.
    """
    result = with_columns(
        *("tp", "pp", "dp", "ZeRO", "offload", "recompute", "micro", "accum", "samples"),
        *("params/rank", "GB/rank", "s/step", "tokens/s", "hours", "MFU", "overhead"),
    )
    for candidate in plan.fits[:rows]:
        result.add_row(*_row(candidate, shape, hardware, train_tokens))
    return result


def rank_table(candidate: Candidate) -> Table:
    """Return a table of the parameters and the memory of each pipeline rank, by category."""
    names = ("parameters", "gradients", "optimizer", "gathered", "activations", "head")
    rows = candidate.simulated or [{name: getattr(memory, name) for name in names} for memory in candidate.memories]
    result = with_columns("pp rank", "params", "GB", *rows[0])
    for rank, (count, memory, kinds) in enumerate(zip(candidate.parameters, candidate.memories, rows, strict=True)):
        device = candidate.on_device[rank] if candidate.on_device else memory.device
        sizes = (f"{size / GB:.2f}" for size in kinds.values())
        result.add_row(str(rank), f"{count:,}", _gigabytes(memory, device), *sizes)
    return result


def largest_line(plan: Plan, hardware: Hardware) -> list[str]:
    """Return the largest micro-batch that fits with the first layout, and what it needs, as a line if one fits."""
    if not plan.fits:
        return []
    largest = plan.largest_of(plan.fits[0], hardware)
    size = ("" if largest.simulated else "~") + _gigabytes(largest.memory, largest.device, 1)
    return [f"largest micro-batch of the first layout that fits: {largest.layout.micro_batch} ({size} GB)"]


def _gigabytes(memory: Memory, device: int, digits: int = 2) -> str:
    """Format the bytes on the device, and those in CPU memory if some are there."""
    on_cpu = f" + {(memory.on_cpu + memory.copies) / GB:.{digits}f} CPU" if memory.on_cpu else ""
    return f"{device / GB:.{digits}f}{on_cpu}"


def _row(candidate: Candidate, shape: Shape, hardware: Hardware, train_tokens: int | None) -> Iterator[str]:
    settings, layout, seconds = candidate.settings, candidate.layout, candidate.duration.total
    p, length, rate = settings.parallel, settings.model.context, candidate.rate
    used = rate * flops_per_token(shape, length) / (hardware.gpus * hardware.tflops * 1e12)
    steps = planned_steps(settings, layout, train_tokens)
    yield from map(str, (p.tp, p.pp, layout.data, p.zero))
    yield offload_of(p) if p.cpu_offload else "-"
    yield "-" if p.activation_checkpointing == "none" else p.activation_checkpointing
    yield from map(str, (layout.micro_batch, layout.accumulation, layout.global_batch))
    yield f"{max(candidate.parameters):,}"
    yield ("" if candidate.simulated else "~") + _gigabytes(candidate.memory, candidate.device, 1)
    yield f"{seconds:.3g}"
    yield f"{shown(rate):,.0f}"
    yield "-" if steps is None else f"{layout.batches.samples_after(steps) * length / rate / 3600:,.3g}"
    yield f"{used:.0%}"
    yield f"{1 - candidate.duration.compute / seconds:.0%}"


def reasons(plan: Plan) -> list[str]:
    """Return the reasons of excluded combinations, one per line."""
    lines = [f"excluded {count} x: {reason}" for reason, count in plan.refused[:MAX_REASONS]]
    rest = plan.refused[MAX_REASONS:]
    return [*lines, f"and {sum(count for _, count in rest)} more for {len(rest)} other reasons"] if rest else lines
