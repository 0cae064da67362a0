"""Presets: named settings, the TOML files in `gpt2train/presets/`."""

import importlib.resources
from typing import Any

from gpt2train.errors import UserError
from gpt2train.settings import nearest, read_toml


def presets() -> list[str]:
    """List the names of the presets, sorted."""
    folder = importlib.resources.files("gpt2train") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset(name: str) -> dict[str, Any]:
    """Read the settings of a preset, as a layer for `gpt2train.settings.build`.

    Raises:
        UserError: there is no such preset; the message names the closest one.
    """
    if name not in presets():
        raise UserError(f"unknown preset {name!r}; {nearest(name, presets())}")
    with importlib.resources.as_file(importlib.resources.files("gpt2train") / "presets" / f"{name}.toml") as path:
        return read_toml(path)
