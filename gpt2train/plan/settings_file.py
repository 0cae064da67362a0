"""Settings file of `gpt2train plan` and `simulate`: of training settings, of a run, or of a flow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpt2train.config import RunConfig, TrainSettings, preset
from gpt2train.plan.budget import Rate, Recipe, given_recipe
from gpt2train.settings import Settings, build, read_toml

# Preset below the settings of a file, as what the file is for takes it. The settings of a run are complete.
DEFAULT_PRESETS = {"settings": "345m", "run": None, "flow": "tiny"}


class FlowFile(Settings):
    """Settings of a plan that a flow's file gives."""

    train: dict[str, Any] = {}
    """Training settings."""
    preset: str | None = None
    """Preset of them."""
    recipe: str | None = None
    """Recipe of them, in place of a preset."""
    depth: int | None = None
    """Blocks of the recipe's model."""
    budget: str | None = None
    """Budget of the recipe, in place of the depth."""


@dataclass(frozen=True)
class SettingsFile:
    """Settings of a file."""

    path: Path | None  # the file; None without one
    kind: Literal["settings", "run", "flow"]
    """Settings that override a preset's, a whole run, or a flow with the settings in its table `train`."""
    settings: Mapping[str, Any]  # training settings in it
    vocab: int | None  # vocabulary size in it
    base: Mapping[str, Any]  # preset, recipe, depth and budget that a flow's file names

    def below(self, options: Mapping[str, Any], rate: Callable[[], Rate]) -> tuple[Mapping[str, Any], Recipe | None]:
        """Return the settings below those of the file, and their recipe, if they are of one.

        Args:
            options: preset, recipe, depth and budget of the command line.
            rate: function that returns the speed of the devices; called for a budget of time alone.

        Raises:
            UserError: the options contradict each other or the file, or one is wrong.
        """
        asked = FlowFile.model_validate({**self.base, **options})
        recipe = given_recipe(asked.recipe, asked.preset, asked.depth, asked.budget, rate)
        name = asked.preset or DEFAULT_PRESETS[self.kind]
        return recipe.settings if recipe else preset(name) if name else {}, recipe


def read_settings(path: Path | None) -> SettingsFile:
    """Read a settings file; None has no settings.

    Raises:
        UserError: the file is missing or is not TOML, or names no training settings where it should.
    """
    found = {} if path is None else read_toml(path)
    vocab = found.get("vocab") if type(found.get("vocab")) is int else None
    if of_flow := {name: found[name] for name in FlowFile.model_fields if name in found}:
        flow = build(FlowFile, of_flow, source=str(path))
        return SettingsFile(path, "flow", flow.train, vocab, flow.model_dump(exclude={"train"}, exclude_none=True))
    of_run = RunConfig.model_fields.keys() - TrainSettings.model_fields.keys()
    settings = {name: value for name, value in found.items() if name not in of_run}
    return SettingsFile(path, "run" if "data" in found else "settings", settings, vocab, {})
