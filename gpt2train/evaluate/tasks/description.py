"""Description of a task: the TOML file that says how items are read from the rows of a data file.

Without further fields a task reads the rows of llm-foundry and CORE: `query`, `choices`, `gold`; `context_options`,
`continuation`, `gold`; `context`, `continuation`; and `text` for a perplexity.
"""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gpt2train.errors import UserError
from gpt2train.settings import Settings, build, layer, nearest, read_toml

Kind = Literal["multiple_choice", "schema", "greedy", "perplexity"]
READY = "ready"  # folder of the descriptions that come with the package
SUFFIX = ".toml"
# Default fields of each kind, those of llm-foundry's rows.
FIELDS: Mapping[Kind, Mapping[str, str]] = {
    "multiple_choice": {"context": "{{ query }}", "choices": "choices", "answer": "gold"},
    "schema": {"choices": "context_options", "target": "{{ continuation }}", "answer": "gold"},
    "greedy": {"context": "{{ context }}", "target": "{{ continuation }}"},
    "perplexity": {"target": "{{ text }}"},
}


class Task(Settings):
    """Description of a task. Templates and expressions are Jinja over the fields of a row."""

    kind: Kind
    """multiple_choice: one context, several continuations. schema: several contexts, one continuation. greedy: the
    target must be what greedy decoding gives. perplexity: of whole texts."""
    data: tuple[str, ...] = Field(min_length=1)
    """Names of the data file below `--data`, the first that exists is read; `*` in a file's name stands for several
    files, which are read in the order of their names, and `**/` for any folder."""
    about: str = ""
    """One line on the task."""
    source: str = ""
    """Origin of the data, for the error if they are missing."""
    url: str = ""
    """Address from which `--fetch` takes the data file, under the first of its names."""
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Hash of the file at `url`; without one, the hash of the first fetch is kept beside the data."""
    labels: str = ""
    """End of the name of a file beside each data file, in place of its suffix, with a label per line. They are read as
    `label` of the rows, which then need none of their own."""
    rule: Literal["lm-eval", "core"] = "lm-eval"
    """lm-eval: sum of the log-probabilities after the context, as lm-evaluation-harness. core: mean over the tokens in
    which the prompts differ, as CORE of DCLM in nanochat."""
    context: str | None = None
    """Template of the text before the continuations."""
    choices: str | tuple[str, ...] | None = None
    """Expression whose value is a list of texts, or a list of templates. Continuations, and contexts of a schema."""
    target: str | None = None
    """Template of the text that is scored."""
    answer: str | int | None = None
    """Expression of the index of the right choice, from 0; or the index."""
    group: str = ""
    """Expression of the part of the data to which a row belongs; each part gets its own score too."""
    delimiter: str = " "
    """Text between context and continuation."""
    shots: int = Field(default=0, ge=0, le=1000)
    """Examples with their answers before each item, drawn from the other items of the data."""
    random: float | None = Field(default=None, ge=0, lt=1)
    """Accuracy of guessing; by default the mean of 1 / choices, and 0 for a greedy match."""
    published: dict[str, dict[str, float]] = {}
    """Published scores: model -> metric -> value."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for name in ("context", "choices", "target", "answer"):
            used, given = name in FIELDS[self.kind], getattr(self, name) is not None
            if given and not used:
                raise ValueError(f"a {self.kind} task has no {name}; leave it out")
        if self.kind == "perplexity" and (self.shots or self.rule == "core"):
            raise ValueError("a perplexity task has no shots, and the rule lm-eval only; leave them out")
        return self

    def field(self, name: str) -> Any:
        """Return a template or expression, by default that of llm-foundry's rows; None if the kind has none."""
        given = getattr(self, name)
        return FIELDS[self.kind].get(name) if given is None else given


class Suite(Settings):
    """Several tasks and the mean of their centred accuracies, (accuracy - random) / (1 - random)."""

    kind: Literal["suite"]
    about: str = ""
    """One line on the suite."""
    tasks: dict[str, Task] = Field(min_length=1)
    """Tasks by name."""
    published: dict[str, float] = {}
    """Published means: model -> value."""

    @field_validator("tasks")
    @classmethod
    def _have_accuracies(cls, tasks: dict[str, Task]) -> dict[str, Task]:
        if found := [name for name, task in tasks.items() if task.kind == "perplexity"]:
            raise ValueError(f"{found[0]} is a perplexity, which has no accuracy; leave it out")
        return tasks


def description_hash(description: Task | Suite) -> str:
    """Return the hash of the fields that scores and their table depend on."""
    origin = {"about", "source", "url", "sha256"}
    nested: Any = origin if isinstance(description, Task) else {"about": True, "tasks": {"__all__": origin}}
    return hashlib.sha256(description.model_dump_json(exclude=nested).encode()).hexdigest()


def read_description(name: str, commands: Sequence[str] = ()) -> tuple[str, Task | Suite]:
    """Read a task or suite, by the name of one that comes with the package or the path of a TOML file.

    `SUITE/TASK` is one task of a suite.

    Args:
        name: name or path.
        commands: further names that the user may have meant, for the error.

    Returns:
        Name for tables and result files, and the description.

    Raises:
        UserError: there is none of this name, or the file is malformed.
    """
    if name.endswith(SUFFIX):
        return Path(name).stem, parse_description(read_toml(name), name)
    suite, _, part = name.partition("/")
    ready = ready_files()
    if suite not in ready:
        raise UserError(f"there is no task {name!r}; {nearest(name, [*commands, *ready])}, or give a {SUFFIX} file")
    found = parse_description(tomllib.loads(ready[suite].read_text(encoding="utf-8")), f"{suite}{SUFFIX}")
    if not part:
        return suite, found
    tasks = found.tasks if isinstance(found, Suite) else {}
    if part not in tasks:
        raise UserError(f"there is no task {name!r}; {nearest(part, list(tasks), suite).replace('.', '/')}")
    return name, tasks[part]


def parse_description(content: Mapping[str, Any], source: str) -> Task | Suite:
    """Build a description from the content of a TOML file.

    Args:
        content: content; `defaults` of a suite are the fields that its tasks do not set.
        source: name of the file, for errors.

    Raises:
        UserError: a field is missing, unknown or wrong.
    """
    if content.get("kind") != "suite":
        return build(Task, content, source=source)
    tasks, defaults = content.get("tasks"), content.get("defaults", {})
    if not isinstance(tasks, Mapping) or not isinstance(defaults, Mapping):
        raise UserError(f"{source}: tasks: a suite has a table [tasks.NAME] for each task; add them")
    merged = {name: layer(defaults, task) if isinstance(task, Mapping) else task for name, task in tasks.items()}
    rest = {key: value for key, value in content.items() if key not in ("defaults", "tasks")}
    return build(Suite, {**rest, "tasks": merged}, source=source)


def ready_files() -> dict[str, Traversable]:
    """Return the descriptions that come with the package, by name, sorted."""
    found = [file for file in files(__package__).joinpath(READY).iterdir() if file.name.endswith(SUFFIX)]
    return {file.name.removesuffix(SUFFIX): file for file in sorted(found, key=lambda file: file.name)}
