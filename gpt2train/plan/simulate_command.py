"""The command `gpt2train simulate`: a training step of a layout, rank by rank, without a GPU and without peers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.config import TrainSettings
from gpt2train.errors import UserError
from gpt2train.parallel.layout import Layout
from gpt2train.plan.budget import this_machine
from gpt2train.plan.command import DEFAULT_HARDWARE, GPT2_VOCAB, with_memory
from gpt2train.plan.duration import Duration, step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.parameters import pieces
from gpt2train.plan.search import GivenLayout, available_bytes
from gpt2train.plan.settings_file import read_settings
from gpt2train.plan.simulation import on_cpu, simulated
from gpt2train.settings import MAX_COUNT, NaturalNumber, PositiveNumber, build, layer
from gpt2train.store.counts import count_of

if TYPE_CHECKING:
    from rich.table import Table

    from gpt2train.simulate.kinds import RankKind


class SimulatedLayout(GivenLayout):
    """Layout of the simulated run; what is not given is that of the settings."""

    sequence_parallel: bool | None = None
    """With tp above 1: split LayerNorm and dropout along the sequence as well."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] | None = None
    """Pipeline schedule."""
    virtual_pipeline_stages: PositiveNumber | None = None
    """Pipeline stages per process, of the interleaved schedule."""
    dp_shard_degree: NaturalNumber | None = None
    """Processes over which ZeRO shards; 0: all data-parallel ones."""
    cpu_offload: bool | None = None
    """Keep training state in CPU memory."""
    offload_placement: Literal["all", "optimizer", "auto"] | None = None
    """Part of the training state that `cpu_offload` keeps in CPU memory."""


ANY_LAYOUT = SimulatedLayout()


def simulate(
    *,
    preset_name: Annotated[str | None, Parameter(name="--preset")] = None,
    config: Path | None = None,
    dp: Annotated[int | None, Parameter(validator=Number(gte=1, lte=MAX_COUNT))] = None,
    rank: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    all_kinds: Annotated[bool, Parameter(negative=())] = False,
    memory: str = "80GB",
    global_batch: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    vocab: Annotated[int | None, Parameter(validator=Number(gte=2, lte=MAX_COUNT))] = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    layout: Annotated[SimulatedLayout, Parameter(name="*")] = ANY_LAYOUT,
    hardware: Annotated[Hardware, Parameter(name="*")] = DEFAULT_HARDWARE,
) -> None:
    """Run a training step of one rank of a layout without computing: errors of shape, memory, collectives, FLOPs, time.

    Parameters
    ----------
    preset_name
        Preset of model, batch and layout: 117m, 345m, 762m, 1542m, …; 345m by default.
    config
        TOML file of settings that override the preset, or the file of a run or of a flow.
    dp
        Data-parallel processes; by default the GPUs (`--gpus`) divided by tp x pp.
    rank
        Rank to simulate; 0 by default.
    all_kinds
        Simulate a rank of every kind: of each stage of the pipeline.
    memory
        Memory of one GPU: 80GB, 141GB, …
    global_batch
        Samples per step; by default the preset's.
    precision
        Precision of the training; by default the preset's.
    vocab
        Vocabulary size; by default that of the run's file, or of GPT-2.
    json_
        Print JSON.
    """
    if rank is not None and all_kinds:
        raise UserError("--rank and --all-kinds exclude each other; give one of them")
    given = layout.model_dump(exclude_none=True)
    batch: dict[str, Any] = {"micro_batch": given.pop("micro_batch")} if "micro_batch" in given else {}
    batch |= {"global_batch": global_batch} if global_batch else {}
    changes: dict[str, Any] = {"parallel": given, "batch": batch} | ({"precision": precision} if precision else {})
    file = read_settings(config)
    vocab = vocab or file.vocab or GPT2_VOCAB
    base, _ = file.below({"preset": preset_name} if preset_name else {}, this_machine)
    below = layer(base, file.settings)
    if batch and (global_batch or below.get("batch", {}).get("global_batch")):  # the third number follows from the two
        batch["gradient_accumulation_steps"] = 0
    settings = build(TrainSettings, below, changes, source=str(config or "settings"))
    if dp is not None:
        hardware = hardware.model_copy(update={"gpus": dp * settings.parallel.tp * settings.parallel.pp})
    hardware = with_memory(hardware, memory)
    ranks = Layout.of(settings, hardware.gpus)
    if rank is not None and rank >= ranks.world:
        raise UserError(f"--rank {rank}: the layout {ranks} has the ranks 0 to {ranks.world - 1}")
    kinds = simulated(settings, vocab, ranks, rank=None if all_kinds else rank or 0)
    parts = pieces(settings, settings.model.shape(vocab))
    duration = step_time(settings, settings.model.shape(vocab), ranks, parts, hardware)
    if json_:
        print(json.dumps(report(settings, ranks, kinds, duration, hardware), indent=1))
    else:
        _show(settings, ranks, kinds, duration, hardware)


def report(
    settings: TrainSettings, layout: Layout, kinds: list["RankKind"], duration: Duration, hardware: Hardware
) -> dict[str, Any]:
    """Return what the command prints as JSON: bytes, FLOPs and seconds."""
    return {
        "layout": {"tp": layout.tp, "pp": layout.pp, "dp": layout.data, "ranks": layout.world},
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.accumulation,
        "kinds": [
            {
                "stage": kind.stage,
                "rank": kind.rank,
                "ranks": kind.ranks,
                "blocks": list(kind.blocks),
                "parameters": kind.step.parameters,
                "peak": kind.step.peak,
                "on_cpu": on_cpu(settings, kind.step.memory),
                "memory": kind.step.memory,
                "flops": kind.step.counts.flops,
                "collectives": [
                    {
                        "operation": one.operation,
                        "dtype": one.dtype,
                        "group": one.group,
                        "group_ranks": one.ranks,
                        "calls": kind.step.counts.calls[one],
                        "bytes": size,
                    }
                    for one, size in kind.step.counts.bytes.most_common()
                ],
            }
            for kind in kinds
        ],
        "seconds": {name: getattr(duration, name) for name in (*Duration.__dataclass_fields__, "total")},
        "memory_available": available_bytes(hardware),
    }


def _show(
    settings: TrainSettings, layout: Layout, kinds: list["RankKind"], duration: Duration, hardware: Hardware
) -> None:
    from rich.console import Console  # takes 0.1 s, which the other commands save

    console = Console(width=None if Console().is_terminal else 140)
    batch = f"micro-batch {layout.micro_batch} x {layout.accumulation}"
    console.print(f"{layout}: {count_of(layout.world, 'rank')}, {batch}, {settings.precision}", highlight=False)
    console.print(_memory(settings, kinds))
    console.print()
    console.print(_collectives(kinds))
    flops = max(kind.step.counts.flops for kind in kinds)
    console.print(f"\nFLOPs of a step: {flops:.4g} on the rank that has most", highlight=False)
    share = duration.bubble / duration.total
    console.print(f"pipeline bubble: {duration.bubble:.3g} s, {share:.0%} of the step", highlight=False)
    speed = f"{hardware.tflops:g} TFLOP/s at {hardware.efficiency:.0%}"
    console.print(f"expected step: {duration.total:.3g} s on {speed}", highlight=False)
    available = available_bytes(hardware)
    device = max(kind.step.peak - on_cpu(settings, kind.step.memory) for kind in kinds)
    verdict = "fits" if device <= available else "does not fit"
    console.print(f"{verdict}: {device / GB:.2f} of {available / GB:.1f} GB", highlight=False)


def _memory(settings: TrainSettings, kinds: list["RankKind"]) -> "Table":
    from gpt2train.plan.show import with_columns

    result = with_columns("stage", "rank", "ranks", "blocks", "params", "GB", *kinds[0].step.memory, "on CPU")
    for kind in kinds:
        memory, away = kind.step.memory, on_cpu(settings, kind.step.memory)
        sizes = (kind.step.peak - away, *memory.values(), away)
        numbers = (f"{size / GB:.2f}" for size in sizes)
        counts = (kind.stage, kind.rank, kind.ranks, len(kind.blocks))
        result.add_row(*map(str, counts), f"{kind.step.parameters:,}", *numbers)
    return result


def _collectives(kinds: list["RankKind"]) -> "Table":
    from gpt2train.plan.show import with_columns

    names = ("collective", "dtype", "group")
    result = with_columns("stage", *names, "ranks", "calls", "GB", left=names)
    for kind in kinds:
        for one, size in kind.step.counts.bytes.most_common():
            calls = f"{kind.step.counts.calls[one]:,}"
            names = (one.operation, one.dtype, one.group)
            result.add_row(str(kind.stage), *names, str(one.ranks), calls, f"{size / GB:.3f}")
    return result
