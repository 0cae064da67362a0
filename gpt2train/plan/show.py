"""Terminal table of a plan."""

from collections.abc import Iterator

from rich.table import Table

from gpt2train.model.families import parameter_count
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.search import Candidate, Plan

MAX_REASONS = 8


def headline(shape: Shape, hardware: Hardware) -> str:
    """Return the model and the hardware in one line."""
    return (
        f"{parameter_count(shape):,} parameters on {hardware.gpus} x {hardware.memory:g} GB, "
        f"{hardware.tflops:g} TFLOP/s at {hardware.efficiency:.0%}"
    )


def table(plan: Plan, shape: Shape, hardware: Hardware, rows: int) -> Table:
    """Return a table of the best layouts."""
    result = Table(box=None, pad_edge=False)
    for name in ("tp", "pp", "dp", "ZeRO", "offload", "recompute", "micro", "accum"):
        result.add_column(name, justify="right")
    for name in ("params/rank", "GB/rank", "s/step", "tokens/s", "MFU", "overhead"):
        result.add_column(name, justify="right")
    for candidate in plan.fits[:rows]:
        result.add_row(*_row(candidate, shape, hardware))
    return result


def _row(candidate: Candidate, shape: Shape, hardware: Hardware) -> Iterator[str]:
    p, layout, seconds = candidate.settings.parallel, candidate.layout, candidate.duration.total
    rate = layout.global_batch * shape.context / seconds
    used = rate * flops_per_token(shape) / (hardware.gpus * hardware.tflops * 1e12)
    yield from map(str, (p.tp, p.pp, layout.data, p.zero))
    yield "yes" if p.cpu_offload else "-"
    yield "-" if p.activation_checkpointing == "none" else p.activation_checkpointing
    yield from map(str, (layout.micro_batch, layout.accumulation))
    yield f"{max(candidate.parameters):,}"
    yield f"{candidate.memory.device / GB:.1f}" + (
        f" + {candidate.memory.on_cpu / GB:.1f} CPU" if candidate.memory.on_cpu else ""
    )
    yield f"{seconds:.3g}"
    yield f"{rate:,.0f}"
    yield f"{used:.0%}"
    yield f"{1 - candidate.duration.compute / seconds:.0%}"


def reasons(plan: Plan) -> list[str]:
    """Return the reasons of excluded combinations, one per line."""
    lines = [f"excluded {count} x: {reason}" for reason, count in plan.refused[:MAX_REASONS]]
    rest = plan.refused[MAX_REASONS:]
    return [*lines, f"and {sum(count for _, count in rest)} more for {len(rest)} other reasons"] if rest else lines
