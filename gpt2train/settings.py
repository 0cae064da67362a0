"""Base class of settings models, layering of settings, and one-line validation errors.

A setting is declared once, as a field of a frozen model with bounds and a docstring, beside the code that reads it. The
same model defines the Python API, the TOML presets, the command-line flags and the form in the Prefect UI.
"""

import ast
import difflib
import functools
import inspect
import itertools
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from gpt2train.errors import UserError, not_utf8

M = TypeVar("M", bound="Settings")

OTHER_FORMATS = (".json", ".py", ".sh", ".yaml", ".yml")
MAX_COUNT = 2**31 - 1  # largest count of a setting: the product of two fits int64, the dtype of index arithmetic
PositiveNumber = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NaturalNumber = Annotated[int, Field(ge=0, le=MAX_COUNT)]


def in_home(path: str) -> str:
    """Replace a leading `~/`, which no shell replaces in a settings file, and few do in `--flag=~/x`."""
    return os.path.expanduser(path) if path.startswith("~/") else path  # noqa: PTH111 - Path's fails without home


Place = Annotated[str, Field(min_length=1), AfterValidator(in_home)]  # path on this machine, or URL


class Record(BaseModel):
    """Base class of what a program writes and reads: frozen, no unknown keys, finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Settings(Record):
    """Base class of settings models, which people write: a boolean is no number, field docstrings are help texts.

    The search for booleans takes twice as long as the rest, which counts in manifests of 10^5 files: they are records.
    """

    @field_validator("*", mode="before")
    @classmethod
    def refuse_boolean_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean for a number, which pydantic would take as 0 or 1."""
        if _has_boolean(value) and _is_numeric(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError("input should be a number, not a boolean")
        return value


@functools.cache
def described(model: type[M]) -> type[M]:
    """Return a model after its fields, and those of the models inside, have got their docstrings as descriptions.

    pydantic's `use_attribute_docstrings` sets them when a class is made, which took a sixth of the time of a command's
    imports. Only help pages, forms and commented files need them. The classes are rebuilt in place, so call it before
    other threads use them.
    """
    found = {cls: _attribute_docstrings(cls) for cls in reversed(model.__mro__) if issubclass(cls, Record)}
    texts = {name: text for one in found.values() for name, text in one.items()}
    for name, field in model.model_fields.items():
        for inner in _leaves(field.annotation):
            if _is_model(inner) and issubclass(inner, Record):
                described(inner)
        if field.description is None:
            field.description = texts.get(name)
    model.model_rebuild(force=True)
    return model


def _attribute_docstrings(cls: type) -> dict[str, str]:
    """Strings that follow the fields in the source of a class; none if there is no source, or another one by now."""
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    return {
        field.target.id: inspect.cleandoc(after.value.value)
        for tree in found
        if isinstance(tree, ast.ClassDef)
        for field, after in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }


def _has_boolean(value: Any) -> bool:
    """Return True for a boolean, and for a list or mapping with one."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, bool) or any(map(_has_boolean, inner))


def _is_numeric(annotation: Any) -> bool:
    """Return True for a type with numbers and without booleans, settings of their own and arbitrary values."""
    leaves = _leaves(annotation)
    return not leaves.isdisjoint((int, float)) and not any(
        leaf in (bool, Any, object) or _is_model(leaf) for leaf in leaves
    )


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _leaves(annotation: Any) -> set[Any]:
    """Types that a type is made of, without the metadata of `Annotated`."""
    if isinstance(annotation, type) and not get_args(annotation):
        return {annotation}
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts = parts[:1]
    return set().union(*map(_leaves, parts)) if parts and get_origin(annotation) is not Literal else {annotation}


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read one TOML file of settings.

    Raises:
        UserError: the file is missing or is not TOML; the message names the file and the line.
    """
    path = in_home(str(path))
    if Path(path).suffix in OTHER_FORMATS and (found := _of_another_system(path)):
        raise UserError(found)  # some configs in Python are TOML too
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))  # editors of Windows write the mark
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {not_utf8(error)}") from error
    except RecursionError as error:
        raise UserError(f"{path}: its values are nested too deeply; write them with fewer brackets") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(_of_another_system(path) or f"{path} is not valid TOML: {error}") from error


def _of_another_system(path: str | Path) -> str | None:
    """Say what a script or config of another training system is; None if the file is of none."""
    from gpt2train.foreign.read import config_of_another_system  # needed by a mistake alone

    return config_of_another_system(Path(path))


def layer(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings key by key; later layers override earlier ones, lists are replaced as a whole."""
    merged: dict[str, Any] = {}
    for mapping in layers:
        for key, value in mapping.items():
            below = merged.get(key)
            merged[key] = layer(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """Parse `group.setting=value` of a command line into nested mappings; the value is TOML, or else plain text.

    Raises:
        UserError: there is no name before a `=`, or the value is nested too deeply.
    """
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise UserError(f"--set {text}: give a setting and its value, such as --set optimizer.lr=3e-4")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except RecursionError as error:
        raise UserError(f"--set {text[:40]}…: the value is nested too deeply; write it in the settings file") from error
    except tomllib.TOMLDecodeError:
        parsed = {}
    return nest(path.strip(), parsed["value"] if parsed.keys() == {"value"} else value.strip())


def nest(path: str, value: Any) -> dict[str, Any]:
    """Put a value under a dotted name into nested mappings."""
    first, _, rest = path.partition(".")
    return {first: nest(rest, value) if rest else value}


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one with dotted names, in their order; an empty mapping has no name."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


Location = tuple[int | str, ...]  # path of a setting
Source = str | Callable[[Location, str], str]


def build(model: type[M], *layers: Mapping[str, Any], source: Source = "settings") -> M:
    """Build a settings model from nested mappings, lowest precedence first.

    The source is the origin of the settings for error messages, or a function that maps a setting's path and pydantic's
    message to it.

    Raises:
        UserError: a setting is wrong or unknown; the message is one line with the nearest valid name.
    """
    try:
        return model.model_validate(layer(*layers))
    except ValidationError as error:
        raise UserError(explain(error, model, source)) from error


def source_of(model: type[BaseModel], location: Location, message: str, *layers: tuple[str, Mapping[str, Any]]) -> str:
    """Name of the layer that an error comes from, the lowest layer first; empty if no layer has the setting.

    Of a value, that is the highest layer that gives it. A group, or all settings together, may be wrong by values of
    several layers: then it is the first layer with which pydantic has this message. Pydantic judges no group that lacks
    a value, which is taken from the layers above.
    """
    giving = group = ""
    merged: dict[str, Any] = {}
    whole = layer(*(settings for _, settings in layers))
    for name, settings in layers:
        value = _value_at(settings, location)
        merged = layer(merged, settings)
        giving = giving if value is None else name
        if isinstance(value, Mapping) and not group and (location, message) in _errors(model, merged, whole):
            group = name
    return group or giving


def _value_at(settings: Any, location: Location) -> Any:
    """Value at a path, of an item of a list the list; None if there is none."""
    for key in location:
        settings = settings.get(key) if isinstance(settings, Mapping) else settings
    return settings


def _errors(
    model: type[BaseModel], settings: Mapping[str, Any], whole: Mapping[str, Any]
) -> list[tuple[Location, str]]:
    try:
        model.model_validate(settings)
    except ValidationError as error:
        lacks = [_without_types(one["loc"]) for one in error.errors() if one["type"] == "missing"]
        if found := {at: value for at in lacks if (value := _value_at(whole, at)) is not None}:
            added = (nest(".".join(map(str, at)), value) for at, value in found.items())
            return _errors(model, layer(settings, *added), {})
        return [(_without_types(one["loc"]), one["msg"]) for one in error.errors()]
    return []


def _without_types(location: Location) -> Location:
    return tuple(part for part in location if not _is_type(part))


def validated(model: type[M], given: Mapping[str, Any], source: str) -> M:
    """Build settings that are part of others; ValueError in one line if one is wrong."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError(explain(error, model, source)) from error


def explain(error: ValidationError, model: type[BaseModel], source: Source = "settings") -> str:
    """Describe the first error that pydantic found in one line, with the setting's name and the valid values."""
    first, others = _clearest(error.errors())
    location = _without_types(first["loc"])
    path = [str(part) for part in location]
    name = ".".join(path)
    source = source if isinstance(source, str) else source(location, first["msg"])
    if first["type"] == "extra_forbidden":
        near = nearest(path[-1], _fields_at(model, path[:-1]), ".".join(path[:-1]))
        if not model.model_fields.keys().isdisjoint(("optimizer", "train")):  # settings of a training
            from gpt2train.foreign.table import group_hint, hint

            near = hint(path[-1]) or (near if near.startswith("did") else group_hint(path[0]) or near)
        return f"{source}: unknown setting {name!r}; {near}"
    if first["type"] == "model_type" and (fields := _fields_at(model, path)):
        return f"{source}: {is_group(name, [f'{name}.{field}' for field in fields])}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":  # a setting's list is a tuple in this code alone
        message = re.sub("(?i)tuple", "list", message).replace(" after validation", "")
    value = first.get("input")
    write = f"; write [{value!r}]" if first["type"] == "tuple_type" and isinstance(value, str) else ""
    given = f" (got {value!r}{write})" if isinstance(value, str | int | float | bool) else ""
    more = f" (and {others} more)" if others else ""
    if not source and not name:
        return f"{message}{more}"
    return f"{source}: {name + ': ' if name else ''}{message[:1].lower()}{message[1:]}{given}{more}"


def is_group(name: str, members: Sequence[str]) -> str:
    """Message for a group of settings that was given a value of its own."""
    return f"{name} is a group of settings; set one of them: {', '.join(members[:6])}{', …' if members[6:] else ''}"


def _clearest(errors: list[Any]) -> tuple[Any, int]:
    """Return the first error, and the number of the others that are not about the same setting.

    A setting that may be of several types has an error for each. The one that leads furthest into the value is of the
    type that was meant; errors about the value itself are joined.
    """
    first = errors[0]
    place = next((at for at, part in enumerate(first["loc"]) if _is_type(part)), None)
    if place is None:
        return first, len(errors) - 1
    same = [error for error in errors if error["loc"][:place] == first["loc"][:place]]
    deepest = max(same, key=lambda error: len(error["loc"]))
    if len(deepest["loc"]) == len(first["loc"]):
        *firsts, last = dict.fromkeys(error["msg"].removeprefix("Input should be ") for error in same)
        message = f"{', '.join(firsts)} or {last}" if firsts else last
        return first | {"msg": f"Input should be {message}"}, len(errors) - len(same)
    return deepest, len(errors) - len(same)


def _is_type(part: int | str) -> bool:
    """Return True for the name of a type, which pydantic adds to the path of a setting of several types."""
    return isinstance(part, str) and (part in ("bool", "int", "float", "str") or "[" in part)


def nearest(name: str, valid: Collection[str], within: str = "") -> str:
    """Suggest the valid name closest to a wrong one within a dotted path, or list all if none is close."""
    from gpt2train.foreign.table import SIMILAR

    if not valid:
        return "leave it out, there are no such settings"
    near = difflib.get_close_matches(name, valid, n=1, cutoff=SIMILAR)
    return f"did you mean {'.'.join(filter(None, [within, near[0]]))!r}?" if near else f"choose: {', '.join(valid)}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the fields that are valid under a path of a settings model."""
    for key in path:
        if key.isdecimal():  # place in a list, whose field has led to the model of its items
            continue
        field = model.model_fields.get(key)
        inner = next((leaf for leaf in _leaves(field.annotation) if _is_model(leaf)), None) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)
