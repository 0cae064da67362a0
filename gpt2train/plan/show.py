"""A plan as a table for a terminal."""

from collections.abc import Iterator

from rich.table import Table

from gpt2train.metrics import flops_per_token, parameter_count
from gpt2train.model.shape import Shape
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.search import Candidate, Plan

REASONS = 8


def headline(shape: Shape, hardware: Hardware) -> str:
    """What is planned, in one line."""
    return (
        f"{parameter_count(shape):,} parameters on {hardware.gpus} x {hardware.memory:g} GB, "
        f"{hardware.tflops:g} TFLOP/s at {hardware.efficiency:.0%}"
    )


def table(plan: Plan, shape: Shape, hardware: Hardware, rows: int) -> Table:
    """The best layouts."""
    result = Table(box=None, pad_edge=False)
    for name in ("tp", "pp", "dp", "ZeRO", "offload", "recompute", "micro", "turns"):
        result.add_column(name, justify="right")
    for name in ("params/rank", "GB/rank", "s/step", "tokens/s", "MFU", "of which waiting"):
        result.add_column(name, justify="right")
    for one in plan.fits[:rows]:
        result.add_row(*_row(one, shape, hardware))
    return result


def _row(one: Candidate, shape: Shape, hardware: Hardware) -> Iterator[str]:
    p, layout, seconds = one.settings.parallel, one.layout, one.duration.total
    rate = layout.global_batch * shape.context / seconds
    used = rate * flops_per_token(shape) / (hardware.gpus * hardware.tflops * 1e12)
    yield from map(str, (p.tp, p.pp, layout.data, p.zero))
    yield "yes" if p.offload else "-"
    yield "-" if p.activation_checkpointing == "none" else p.activation_checkpointing
    yield from map(str, (layout.micro_batch, layout.accumulation))
    yield f"{max(one.parameters):,}"
    yield f"{one.memory.device / GB:.1f}" + (f" + {one.memory.on_cpu / GB:.1f} CPU" if one.memory.on_cpu else "")
    yield f"{seconds:.3g}"
    yield f"{rate:,.0f}"
    yield f"{used:.0%}"
    yield f"{1 - one.duration.compute / seconds:.0%}"


def reasons(plan: Plan) -> list[str]:
    """Why combinations were left out, a line each."""
    lines = [f"left out {count} x: {reason}" for reason, count in plan.refused[:REASONS]]
    rest = plan.refused[REASONS:]
    return [*lines, f"and {sum(count for _, count in rest)} more for {len(rest)} other reasons"] if rest else lines
