"""Presets: named settings, the TOML files in `gpt2train/presets/` and two depths of the modern recipe."""

import importlib.resources
from typing import Any

from gpt2train.config.recipe import modern
from gpt2train.errors import UserError
from gpt2train.settings import layer, nearest, read_toml

FOLDER = importlib.resources.files("gpt2train") / "presets"
MODERN = {"modern-12": 12, "modern-24": 24}  # depth


def presets() -> list[str]:
    """List the names of the presets, sorted."""
    files = [entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".toml")]
    return sorted([*MODERN, *(name.removesuffix(".toml") for name in files)])


def preset(name: str) -> dict[str, Any]:
    """Read the settings of a preset, as a layer for `gpt2train.settings.build`.

    A file may name another preset as its `base`, which has what the file leaves out.

    Raises:
        UserError: there is no such preset; the message names the closest one.
    """
    if name not in presets():
        raise UserError(f"unknown preset {name!r}; {nearest(name, presets())}")
    if name in MODERN:
        return modern(MODERN[name])
    with importlib.resources.as_file(FOLDER / f"{name}.toml") as path:
        given = read_toml(path)
    base = given.pop("base", None)
    return layer(preset(base), given) if base else given
