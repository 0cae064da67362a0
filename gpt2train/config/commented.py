"""Complete settings file with a comment above each setting, generated from the settings models."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import tomli_w
from pydantic.fields import FieldInfo

from gpt2train.config.run import RunConfig
from gpt2train.settings import Location, Settings, build, described, layer

WIDTH = 100  # characters of a comment line


def commented_run(
    name: str,
    chosen: Mapping[str, Any],
    train: str,
    valid: str | None,
    vocab: int,
    output: str,
    *,
    sources: Mapping[str, str] | None = None,
    head: Sequence[str] = (),
    launcher: str = "torchrun --standalone --nproc-per-node 1",
) -> str:
    """Generate the `run.toml` of a preset or a recipe, for `python -m gpt2train.train --config run.toml`.

    It reads back as exactly these settings. A setting without a value becomes a comment. `sources` says where values
    come from, by the dotted names of settings; `head` are lines for the head of the file.

    Raises:
        UserError: a value is out of bounds.
    """
    given = {"data": {"train": train, "valid": valid}, "vocab": vocab, "output": output}
    sources = sources or {}

    def source(setting: Location, _: str) -> str:
        return sources.get(".".join(map(str, setting)), name)

    lines = [f"Settings of a training run: {name}, complete. Start it with", ""]
    lines += [f"    {launcher} -m gpt2train.train --config run.toml", *head]
    text = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return f"{text}\n{commented(build(RunConfig, layer(chosen, given), source=source), sources)}"


def commented(settings: Settings, sources: Mapping[str, str] | None = None) -> str:
    """Format settings as TOML, each under its description and with the source of its value behind it."""
    return "\n".join(_lines(settings, (), sources or {})).rstrip() + "\n"


def _lines(settings: Settings, path: tuple[str, ...], sources: Mapping[str, str]) -> list[str]:
    def line(text: str, *names: str) -> str:
        source = sources.get(".".join((*path, *names)))
        return f"{text} # {source}" if source else text

    plain, nested = [], []
    for name, field in described(type(settings)).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            inner = (*path, name)
            nested += ["", *_comment(field.description), f"[{'.'.join(inner)}]", *_lines(value, inner, sources)]
            continue
        if isinstance(value, dict) and value:
            nested += ["", *_comment(field.description), f"[{'.'.join((*path, name))}]"]
            nested += [line(_assignment(key, item), name, key) for key, item in value.items()]
            continue
        plain += _comment(_described(field))
        # A setting that is off may be left out of the dump.
        stored = settings.model_dump(mode="json", include={name}).get(name, value)
        plain.append(f"# {name} is not set" if value is None else line(_assignment(name, stored), name))
    return [*plain, *nested]


def _described(field: FieldInfo) -> str:
    """Description of a setting, followed by its possible values."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if get_origin(kind) is Literal]
    choices = [str(choice) for kind in kinds for choice in get_args(kind)]
    return f"{field.description or ''}{' One of: ' + ', '.join(choices) + '.' if choices else ''}"


def _comment(text: str | None) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join((text or "").split()), WIDTH)]


def _assignment(name: str, value: Any) -> str:
    return f"{name} = {_inline(value)}" if isinstance(value, list | dict) else tomli_w.dumps({name: value}).strip()


def _inline(value: Any) -> str:
    """Format a value on one line, so that a list of tables may precede the tables of its section."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
