"""Command that trains with a planned layout."""

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gpt2train.config import BatchSettings, ParallelSettings, PerformanceSettings, TrainSettings
from gpt2train.plan.budget import Recipe, read_budget
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.settings_file import DEFAULT_PRESETS, SettingsFile
from gpt2train.settings import Settings, build, layer

RENDEZVOUS = "HOST:29500"  # of several machines, whose names are the user's to fill in


def best_command(
    best: TrainSettings,
    file: SettingsFile,
    options: Mapping[str, Any],
    base: tuple[Mapping[str, Any], Recipe | None],
    hardware: Hardware,
) -> str:
    """Return the command of a training with the layout of a plan, without its tokens.

    Args:
        best: settings of the layout.
        file: settings file of the plan. A run's file is for `gpt2train.train`, all else for the flow.
        options: preset, or recipe with its size, of the command line.
        base: settings of the preset or the recipe, and the recipe.
        hardware: GPUs.
    """
    below, recipe = base
    budget = {**file.base, **options}.get("budget")
    if recipe and budget is not None and read_budget(budget)[1] == "seconds":  # of this hardware, not of the reader's
        options = {**options, "budget": recipe.flops_budget}
    elif not options and file.kind == "settings":
        options = {"preset": DEFAULT_PRESETS["settings"]}
    names = chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
    nodes, processes = _machines(hardware)
    # The changes are those to every base that the user may have in mind: with the settings of the file, and without.
    with_file = _without_options(best, layer(below, file.settings))
    if file.kind == "run" and not recipe:
        rendezvous = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", RENDEZVOUS]
        several = rendezvous if nodes > 1 else ["--standalone"]
        changes = (("--set", f"{name}={json.dumps(value)}") for name, value in _changed("", best, with_file))
        start = ["torchrun", *several, "--nproc-per-node", str(processes), "-m", "gpt2train.train"]
        return shlex.join([*start, *names, "--config", str(file.path), *chain.from_iterable(changes)])
    others = [with_file] if file.kind == "flow" else [with_file, build(TrainSettings, below)]
    config = ["--config", str(file.path)] if file.kind == "flow" else []
    several = ["--launch.nodes", str(nodes), "--launch.endpoint", RENDEZVOUS] if nodes > 1 else []
    launch = ["--launch.processes", str(processes), *several]
    flags = chain.from_iterable(_flag(name, value) for name, value in _changed("train.", best, *others))
    return shlex.join(["python", "-m", "flows.pretrain", *names, *config, *launch, *flags])


def _machines(hardware: Hardware) -> tuple[int, int]:
    """Return the smallest number of machines that have equally many of the GPUs, and how many each has."""
    fewest = -(-hardware.gpus // hardware.gpus_per_node)
    nodes = next(number for number in range(fewest, hardware.gpus + 1) if hardware.gpus % number == 0)
    return nodes, hardware.gpus // nodes


def _without_options(best: TrainSettings, given: Mapping[str, Any]) -> TrainSettings:
    """Return the settings with what a plan changes as preset and file give it."""
    parts: dict[str, Any] = {
        "parallel": build(ParallelSettings, given.get("parallel", {})),
        "batch": build(BatchSettings, given.get("batch", {})),
        "performance": build(PerformanceSettings, given.get("performance", {})),
        "precision": given.get("precision", TrainSettings.model_fields["precision"].default),
    }
    return best.model_copy(update=parts)


def _changed(prefix: str, settings: Settings, *others: Settings | None) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the settings that are not the same in all others."""
    for name in type(settings).model_fields:
        value, rest = getattr(settings, name), [getattr(other, name, None) for other in others]
        if isinstance(value, Settings):
            yield from _changed(f"{prefix}{name}.", value, *rest)
        elif any(value != other for other in rest):
            yield f"{prefix}{name}", value


def _flag(name: str, value: Any) -> list[str]:
    """Return a flag of a flow."""
    group, _, field = name.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{group}.{'' if value else 'no-'}{field}"]
    return [f"--{group}.{field}", json.dumps(value) if isinstance(value, dict) else str(value)]
