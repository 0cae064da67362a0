"""Settings with a name: the TOML files in `gpt2train/presets/`."""

import difflib
import importlib.resources
from typing import Any

from gpt2train.errors import UserError
from gpt2train.settings import read_toml


def presets() -> list[str]:
    """Names of the presets, sorted."""
    folder = importlib.resources.files("gpt2train") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset(name: str) -> dict[str, Any]:
    """The settings of a preset, as a layer for `gpt2train.settings.build`.

    Raises:
        UserError: there is no such preset; the message names the nearest one.
    """
    if name not in presets():
        near = difflib.get_close_matches(name, presets(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(presets())}"
        raise UserError(f"unknown preset {name!r}; {hint}")
    with importlib.resources.as_file(importlib.resources.files("gpt2train") / "presets" / f"{name}.toml") as path:
        return read_toml(path)
