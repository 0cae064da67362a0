"""The command `gpt2train plan`, which finds the best parallel layout of a training."""

import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from gpt2train.config import TrainSettings
from gpt2train.config.recipe import vocabulary
from gpt2train.errors import UserError
from gpt2train.plan.best_command import best_command
from gpt2train.plan.budget import GOALS, cpu_rate, gpu_rate
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.search import ANY_LAYOUT, GivenLayout, Plan, search
from gpt2train.plan.settings_file import read_settings
from gpt2train.plan.show import goal_line, headline, largest_line, rank_table, reasons, summary, table
from gpt2train.settings import MAX_COUNT, build, explain
from gpt2train.store.counts import count_of

GPT2_VOCAB = 50257
FORMULA_ERROR = 0.25  # by which formulas may name too much memory and the layout is still simulated
DEFAULT_HARDWARE = Hardware()


def plan(
    *,
    preset_name: Annotated[str | None, Parameter(name="--preset")] = None,
    recipe: str | None = None,
    depth: int | None = None,
    budget: Annotated[str | None, Parameter(name=("--budget", "--goal"))] = None,
    cores: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    config: Path | None = None,
    memory: str = "80GB",
    global_batch: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    vocab: Annotated[int | None, Parameter(validator=Number(gte=2, lte=MAX_COUNT))] = None,
    tokens: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    rows: Annotated[int, Parameter(validator=Number(gte=1))] = 12,
    simulate: bool = True,
    layout: Annotated[GivenLayout, Parameter(name="*")] = ANY_LAYOUT,
    hardware: Annotated[Hardware, Parameter(name="*")] = DEFAULT_HARDWARE,
) -> None:
    """Show memory per rank and expected time of every layout on a number of GPUs, best first, or of a given layout.

    Parameters
    ----------
    preset_name
        Preset of model and batch: 117m, 345m, 762m, 1542m, …; 345m by default.
    recipe
        Recipe in place of a preset: modern, with --depth or --budget.
    depth
        Blocks of the recipe's model.
    budget
        Time on this hardware (90m, 8h, 2d), FLOPs (1e18), or the goal gpt2, in place of --depth.
    cores
        With a recipe, CPU cores to train on in place of GPUs: show the time, and no layouts.
    config
        TOML file of settings that override the preset or the recipe, or the file of a run or of a flow.
    memory
        Memory of one GPU: 80GB, 141GB, …
    global_batch
        Samples per step; by default the preset's, or those of its own layout on these GPUs.
    precision
        Precision of the training; by default the preset's.
    vocab
        Vocabulary size; by default that of the run's file, of the recipe, or of GPT-2.
    tokens
        Training tokens, for the hours of settings with epochs.
    rows
        Number of layouts to show.
    simulate
        Take the memory of the best five layouts from a simulated step (2 to 20 s each), not from formulas.
    """
    from rich.console import Console  # takes 0.1 s, which the other commands save

    hardware = with_memory(hardware, memory)
    rate = gpu_rate(hardware) if cores is None else cpu_rate(cores)
    file = read_settings(config)
    names = {"preset": preset_name, "recipe": recipe, "depth": depth, "budget": budget}
    options = {name: value for name, value in names.items() if value is not None}
    base, chosen = file.below(options, lambda: rate)
    changes: dict[str, object] = {"batch": {"global_batch": global_batch} if global_batch else {}}
    changes |= {"precision": precision} if precision else {}
    settings = build(TrainSettings, base, file.settings, changes, source=str(config or "settings"))
    vocab = file.vocab if vocab is None else vocab
    if chosen:
        vocab = vocabulary(chosen.depth) if vocab is None else vocab
        for line in summary(settings, vocab, rate, hardware if cores is None else cores):
            print(line)
        if (goal := file.base.get("budget") if budget is None else budget) in GOALS:
            print(goal_line(str(goal), rate(settings.precision)))
    if cores is not None:
        if not chosen:
            raise UserError("--cores is for a recipe; add --recipe modern, or leave it out")
        return
    shape = settings.model.shape(vocab or GPT2_VOCAB)
    found = search(settings, shape, hardware, layout, tolerance=FORMULA_ERROR if simulate else 0)
    if simulate:
        from gpt2train.plan.referee import refereed

        found = refereed(found, vocab or GPT2_VOCAB, hardware)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(headline(shape, hardware))
    if found.fits:
        console.print(table(found, shape, hardware, rows, tokens))
    if found.fits and layout.tp and layout.pp:
        console.print()
        console.print(rank_table(found.fits[0]))
    largest = [] if layout.micro_batch else largest_line(found, hardware)
    for line in [*largest, *reasons(found)]:
        console.print(line, style="dim", highlight=False)
    if not found.fits:
        raise no_layout(found, layout, hardware)
    command = best_command(found.fits[0].settings, file, options, (base, chosen), hardware)
    console.print(f"best: {command}", highlight=False, soft_wrap=True)


def no_layout(found: Plan, layout: GivenLayout, hardware: Hardware) -> UserError:
    """Return the error of a plan without a layout that fits."""
    given = layout.model_dump(exclude_none=True)
    kind = f"layout with {', '.join(f'{name} {value}' for name, value in given.items())}" if given else "layout"
    if not any(" GB" in reason for reason, _ in found.refused):
        gpus = count_of(hardware.gpus, "GPU")
        return UserError(f"no {kind} is possible on {gpus}: {found.refused[0][0]}; change one of them")
    return UserError(f"no {kind} fits {hardware.gpus} x {hardware.memory:g} GB; give more GPUs or more memory")


def with_memory(hardware: Hardware, memory: str) -> Hardware:
    """Return the hardware with this memory of a GPU, as `gigabytes` reads it."""
    try:
        return Hardware.model_validate(hardware.model_dump() | {"memory": gigabytes(memory)})
    except ValidationError as error:
        raise UserError(explain(error, Hardware, "--memory")) from error


def gigabytes(text: str) -> float:
    """Convert 80, 80GB or 74.5GiB to units of 10^9 bytes."""
    number = text.strip().lower()
    try:
        return float(re.sub("(gib|gb|g)$", "", number)) * (1.073741824 if number.endswith("gib") else 1.0)
    except ValueError as error:
        raise UserError(f"--memory {text!r} is not an amount of memory; write it as 80GB") from error
