"""Settings reference of the site, generated from the settings models: one heading per setting, grouped as in TOML."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from schema_text import describe

from flows.finetune_settings import FinetuneFlowSettings
from flows.settings import DataprepSettings, EvaluateFlowSettings, PretrainFlowSettings
from gpt2train.config import RunConfig, TrainSettings, preset, presets
from gpt2train.evaluate.tasks.description import Task
from gpt2train.evaluate.wikitext import WikitextSettings
from gpt2train.inference.settings import BeamSettings, SamplingSettings, ServingLayout
from gpt2train.model.gpt2_family import GPT2Options
from gpt2train.model.llama_family import LlamaOptions
from gpt2train.model.objectives import SpanCorruptionOptions
from gpt2train.model.t5_family import T5Options
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.search import GivenLayout
from gpt2train.plan.simulate_command import SimulatedLayout
from gpt2train.serve.settings import ServeSettings
from gpt2train.settings import Settings, described
from tasks.finetune.settings import TaskSettings


@dataclass(frozen=True)
class Part:
    """Settings of one command.

    Attributes:
        title: heading of the part.
        model: the command's settings model.
        about: Markdown under the heading.
        prefix: first part of the anchors, for settings that are flags without a TOML table.
        flags: True if each setting is an option of a command.
        without: fields of this base class are left out, because another part has them.
    """

    title: str
    model: type[Settings]
    about: str
    prefix: str = ""
    flags: bool = True
    without: type[Settings] | None = None


PAGES: dict[str, tuple[Part, ...]] = {
    "data/settings.md": (
        Part(
            "Run and sources",
            DataprepSettings,
            "Settings of `python -m flows.dataprep`. `python -m flows.pipeline` has them too, and those of the "
            "[training](../train/settings.md) and of the [scores](../operate/settings.md).",
        ),
    ),
    "train/settings.md": (
        Part(
            "Run and data",
            PretrainFlowSettings,
            "Settings of `python -m flows.pretrain`; `python -m flows.pipeline` has them too, except `tokens`, "
            "`split`, `tokenizer` and `vocab` of [token files made elsewhere](ready-tokens.md). A run's own file "
            "(`gpt2train config > run.toml`) has the tables of `train` without the prefix: `[model]`, not "
            "`[train.model]`. A preset replaces the defaults that [the table of presets](#presets) names.",
        ),
        Part(
            "Run file",
            RunConfig,
            "Keys that only a run's own file has, for `python -m gpt2train.train --config run.toml`. They have no "
            "flags.",
            prefix="run-file",
            flags=False,
            without=TrainSettings,
        ),
        Part(
            "Fine-tuning",
            FinetuneFlowSettings,
            "Settings of `python -m flows.finetune` besides those of `train`, `launch` and others above, which have "
            "[defaults of their own](finetune.md) there.",
            prefix="finetune",
            without=PretrainFlowSettings,
        ),
        Part(
            "Task file",
            TaskSettings,
            "Keys of the [task file](finetune.md) of a fine-tuning. They have no flags.",
            prefix="task-file",
            flags=False,
        ),
        *(
            Part(f"Options of {what}", model, f"Keys of `[{table}]`.", prefix=f"options-{model.__name__}", flags=False)
            for what, table, model in (
                ("the family gpt2", "train.model.options", GPT2Options),
                ("the family llama", "train.model.options", LlamaOptions),
                ("the family t5", "train.model.options", T5Options),
                ("span corruption", "train.objective.options", SpanCorruptionOptions),
            )
        ),
        Part("Layout of a plan", GivenLayout, "Options of `gpt2train plan`.", prefix="plan-layout"),
        Part("Hardware of a plan", Hardware, "Options of `gpt2train plan` and `simulate`.", prefix="plan"),
        Part(
            "Layout of a simulation",
            SimulatedLayout,
            "Options of `gpt2train simulate`, besides those of the hardware of a plan.",
            prefix="simulate-layout",
        ),
    ),
    "operate/settings.md": (
        Part(
            "Scores",
            EvaluateFlowSettings,
            "Settings of `python -m flows.evaluate`. `python -m flows.pipeline` has `merge`, `evaluate`, "
            "`wikitext` and `evals` too; `gpt2train merge` has those of `merge` as `--dtype` and `--license`.",
        ),
        Part(
            "Task of an evaluation",
            Task,
            "Keys of the [task file](../train/evaluate.md#tasks) of `gpt2train evaluate TASK`. They have no flags.",
            prefix="evaluation-task",
            flags=False,
        ),
        Part("WikiText", WikitextSettings, "Options of `gpt2train evaluate wikitext`.", prefix="wikitext-options"),
        Part("Server", ServeSettings, "Options of `gpt2train serve`.", prefix="serve"),
        Part("Sampling", SamplingSettings, "Options of `gpt2train generate`.", prefix="generate"),
        Part("Beam search", BeamSettings, "Options of `gpt2train generate` with `--beams`.", prefix="beams"),
        Part("Processes", ServingLayout, "Options of `gpt2train serve` and `gpt2train generate`.", prefix="processes"),
    ),
}


@dataclass(frozen=True)
class Group:
    """One table of the TOML file.

    Attributes:
        path: keys that lead to it.
        model: its settings model.
        values: its defaults, where the group above gives some; None if it has none.
        in_list: True for an entry of a list, which a flag cannot name.
    """

    path: tuple[str, ...]
    model: type[Settings]
    values: Settings | None = None
    in_list: bool = False

    def fields(self) -> dict[str, FieldInfo]:
        """The settings of this table alone, without the tables within it."""
        found = self.model.model_fields.items()
        return {name: field for name, field in found if not _is_settings(field.annotation)}


def page(name: str) -> str:
    """Markdown of the generated sections of one page.

    Args:
        name: path below `docs/`, a key of `PAGES`.
    """
    lines = [line for part in PAGES[name] for line in _part(part)]
    if name == "train/settings.md":
        lines += _presets()
    return "\n".join(lines)


def groups(part: Part) -> Iterator[Group]:
    """The tables of a part, outer ones first."""
    for group in _groups_within(Group((), part.model)):
        if part.without is None or not group.path or group.path[0] not in part.without.model_fields:
            yield group


def anchor(part: Part, path: tuple[str, ...]) -> str:
    """Name by which a link finds a setting or a table on its page."""
    return ".".join(filter(None, [part.prefix, *path]))


def _groups_within(group: Group) -> Iterator[Group]:
    yield group
    for name, field in group.model.model_fields.items():
        default = getattr(group.values, name) if group.values is not None else field.default
        for model, in_list in _models_in(field.annotation):
            values = default if isinstance(default, Settings) else None
            yield from _groups_within(Group((*group.path, name), model, values, group.in_list or in_list))


def _models_in(annotation: Any, in_list: bool = False) -> Iterator[tuple[type[Settings], bool]]:
    """The settings models of an annotation, each with whether it is an entry of a list."""
    if _is_settings(annotation):
        yield annotation, in_list
    for inner in get_args(annotation):
        yield from _models_in(inner, in_list or get_origin(annotation) is tuple)


def _is_settings(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _part(part: Part) -> Iterator[str]:
    yield f"## {part.title}\n\n{part.about}\n"
    for group in groups(part):
        if group.path:
            yield f"## {'.'.join(group.path)} {{ #{anchor(part, group.path)} }}\n"
            yield f"{inspect.getdoc(group.model)}\n"
        schema = described(group.model).model_json_schema()
        for name, field in group.fields().items():
            if part.without is None or group.path or name not in part.without.model_fields:
                yield from _setting(part, group, name, field, schema["properties"][name])


def _setting(part: Part, group: Group, name: str, field: FieldInfo, schema: Mapping[str, Any]) -> Iterator[str]:
    path = (*group.path, name)
    facts = [describe(schema), _default(group, name, field)]
    if part.flags and not group.in_list:
        facts.insert(0, f"`--{'.'.join(path).replace('_', '-')}`")
    yield f"### `{'.'.join(path)}` {{ #{anchor(part, path)} }}\n"
    yield f"{' · '.join(facts)}\n{{ .facts }}\n"
    text = inspect.cleandoc(field.description or "")
    yield re.sub(r"\bdocs/([\w/-]+)\.md\b", r"[\1](../\1.md)", text) + "\n"


def _default(group: Group, name: str, field: FieldInfo) -> str:
    """The default in TOML; of one that depends on the machine its description."""
    if field.default_factory is not None:
        return f"default: {(inspect.getdoc(field.default_factory) or 'computed').splitlines()[0].rstrip('.')}"
    if group.values is None and field.is_required():
        return "required"
    values = group.values or group.model.model_construct(**{name: field.default})
    # A setting that is off may be left out of the dump.
    value = values.model_dump(mode="json", include={name}).get(name, getattr(values, name))
    return "default: not set" if value is None else f"default `{json.dumps(value, ensure_ascii=False)}`"


def _presets() -> Iterator[str]:
    """A table of what each preset sets."""
    names = sorted(presets(), key=lambda name: ("-" in name, 0 if "-" in name else len(name), name))
    values = {name: dict(_flat(preset(name), "")) for name in names}
    rows = [["key", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    for key in dict.fromkeys(key for name in names for key in values[name]):
        rows.append([f"`{key}`", *(str(values[name].get(key, "")) for name in names)])
    yield "## Presets { #presets }\n\nKeys of `train` that each preset sets; the others keep their default.\n"
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
