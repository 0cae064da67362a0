"""How settings are declared, layered and refused.

A setting is declared once, as a field of a frozen model with bounds and a docstring under it, beside the code that
reads it. The same model is the Python API, the TOML preset, the command-line flags and the form in the Prefect UI.
"""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from gpt2train.errors import UserError

M = TypeVar("M", bound="Settings")


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys forbidden, docstrings are the help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read one TOML file of settings.

    Raises:
        UserError: the file is missing or is not TOML; the message names the file and the line.
    """
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def layer(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; a later layer wins key by key, lists are replaced whole."""
    merged: dict[str, Any] = {}
    for mapping in layers:
        for key, value in mapping.items():
            below = merged.get(key)
            merged[key] = layer(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def build(model: type[M], *layers: Mapping[str, Any], source: str = "settings") -> M:
    """Build a settings model from layers, lowest precedence first.

    Raises:
        UserError: a wrong or unknown setting, in one line, with the nearest valid name.
    """
    try:
        return model.model_validate(layer(*layers))
    except ValidationError as error:
        raise UserError(explain(error, model, source)) from error


def explain(error: ValidationError, model: type[BaseModel], source: str = "settings") -> str:
    """Say in one line what pydantic found wrong first, where, and what would be right."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    name = ".".join(where)
    if first["type"] == "extra_forbidden":
        valid = _fields_at(model, where[:-1])
        return f"{source}: unknown setting {name!r}; {nearest(where[-1], valid, '.'.join(where[:-1]))}"
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    given = f" (got {value!r})" if isinstance(value, str | int | float | bool) else ""
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{source}: {name + ': ' if name else ''}{message[:1].lower()}{message[1:]}{given}{more}"


def nearest(name: str, valid: Collection[str], within: str = "") -> str:
    """The question whether the valid name nearest to a wrong one was meant; all of them, where none is near.

    Args:
        within: what the names belong to, shown before the nearest one with a dot.
    """
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"did you mean {'.'.join(filter(None, [within, near[0]]))!r}?" if near else f"there are: {', '.join(valid)}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields that are valid at a nested place of a settings model."""
    for key in path:
        field = model.model_fields.get(key)
        candidates = [] if field is None else [field.annotation, *get_args(field.annotation)]
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
