"""The command `gpt2train plan`, which finds the best parallel layout of a training."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import ValidationError

from gpt2train.config import ParallelSettings, TrainSettings, preset
from gpt2train.errors import UserError
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.search import GivenLayout, search
from gpt2train.plan.show import headline, rank_table, reasons, table
from gpt2train.settings import build, explain, read_toml

GPT2_VOCAB = 50257
DEFAULT_HARDWARE = Hardware()
ANY_LAYOUT = GivenLayout()


def plan(
    *,
    preset_name: Annotated[str, Parameter(name="--preset")] = "345m",
    config: Path | None = None,
    memory: str = "80GB",
    global_batch: int | None = None,
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    vocab: int = GPT2_VOCAB,
    tokens: int | None = None,
    rows: int = 12,
    layout: Annotated[GivenLayout, Parameter(name="*")] = ANY_LAYOUT,
    hardware: Annotated[Hardware, Parameter(name="*")] = DEFAULT_HARDWARE,
) -> None:
    """Show memory per rank and expected time of every layout on a number of GPUs, best first, or of a given layout.

    Parameters
    ----------
    preset_name
        Preset of model and batch: 117m, 345m, 762m, 1542m, …
    config
        TOML file of settings that override the preset.
    memory
        Memory of one GPU: 80GB, 141GB, …
    global_batch
        Samples per step; by default the preset's.
    precision
        Precision of the training; by default the preset's.
    vocab
        Vocabulary size.
    tokens
        Training tokens, for the hours of settings with epochs.
    rows
        Number of layouts to show.
    """
    from rich.console import Console  # takes 0.1 s, which the other commands save

    changes = {"batch": {"global_batch": global_batch} if global_batch else {}}
    layers = [preset(preset_name), read_toml(config) if config else {}, changes]
    settings = build(TrainSettings, *layers, {"precision": precision} if precision else {})
    model = settings.model
    shape = model.shape(vocab)
    try:
        hardware = Hardware.model_validate(hardware.model_dump() | {"memory": _gigabytes(memory)})
    except ValidationError as error:
        raise UserError(explain(error, Hardware, "--memory")) from error
    found = search(settings, shape, hardware, layout)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(headline(shape, hardware))
    if found.fits:
        console.print(table(found, shape, hardware, rows, tokens))
    if found.fits and layout.tp and layout.pp:
        console.print()
        console.print(rank_table(found.fits[0]))
    for line in reasons(found):
        console.print(line, style="dim", highlight=False)
    if not found.fits:
        given = layout.model_dump(exclude_none=True)
        kind = f"layout with {', '.join(f'{name} {value}' for name, value in given.items())}" if given else "layout"
        raise UserError(f"no {kind} fits {hardware.gpus} x {hardware.memory:g} GB; give more GPUs or more memory")
    best = found.fits[0]
    p, defaults = best.settings.parallel, ParallelSettings()
    flags = [
        f"--train.parallel.{name} {getattr(p, name)}"
        for name in ("tp", "pp", "zero")
        if getattr(p, name) != getattr(defaults, name)
    ]
    flags += ["--train.parallel.cpu-offload"] if p.cpu_offload else []
    flags += [f"--train.parallel.offload-placement {p.offload_placement}"] if p.offload_placement != "all" else []
    if p.activation_checkpointing != "none":
        flags.append(f"--train.parallel.activation-checkpointing {p.activation_checkpointing}")
    flags.append(f"--train.batch.micro-batch {best.layout.micro_batch}")
    console.print(f"best: {' '.join(flags)}", highlight=False, soft_wrap=True)


def _gigabytes(text: str) -> float:
    """Convert 80, 80GB or 74.5GiB to units of 10^9 bytes."""
    number, unit = text.strip().lower(), 1.0
    for suffix, size in (("gib", 1.073741824), ("gb", 1.0), ("g", 1.0)):
        if number.endswith(suffix):
            number, unit = number.removesuffix(suffix), size
            break
    try:
        return float(number) * unit
    except ValueError as error:
        raise UserError(f"--memory {text!r} is not an amount of memory; write it as 80GB") from error
