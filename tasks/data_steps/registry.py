"""Registry of data steps that plug-ins add to the chain from documents to tokens.

A step is described by a `DataStep`. From it follow its settings group and flags, its limit of rejected rows, its
fingerprint, its place in the recipe, and with them its dry run, its Prefect task and its line in the report.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, create_model

from gpt2train.errors import UserError
from gpt2train.plugins import Registry, distributions_of
from gpt2train.settings import Settings, explain
from tasks.clean.filters.verdict import Rejection
from tasks.core.reject_limits import LimitSettings

After = Literal["clean", "decontaminate", "dedup"]


@dataclass(frozen=True)
class DataStep:
    """A step that changes or rejects documents one by one.

    Attributes:
        name: name of the step, of its settings group and of its limit: lower-case letters, digits, underscores.
        settings: settings model; its docstring is the help text of the group. Every field has a default.
        process: module-level function of a document (a row of schema `shards.CLEAN` as a dict) and the settings. It
            returns the text to keep, or a `Rejection`. Equal arguments give equal results.
        after: built-in step that it follows. Steps that follow the same one run in the order of their registration.
        version: version of the output, raised when a code change alters it. The version of the plug-in's distribution
            is part of the fingerprint too.
        limit: maximum share of rejected documents above which the run stops; `limits.NAME` overrides it.
        libraries: names of the distributions that the output depends on, besides the plug-in's own.
    """

    name: str
    settings: type[Settings]
    process: Callable[[dict[str, Any], Any], str | Rejection]
    after: After = "clean"
    version: int = 1
    limit: float = 0.95
    libraries: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions whose versions are part of the fingerprint: the plug-in's own, and `libraries`."""
        return (*distributions_of(self.process), *self.libraries)


class DataStepRegistry(Registry[DataStep]):
    """Data steps by name; a step runs in worker processes, with the settings of its group."""

    def register(self, name: str, entry: DataStep) -> DataStep:
        """Add a step and return it; UserError if its name is taken or malformed, or it cannot be run as described."""
        place = f"data step {name}"
        if entry.name != name:
            raise UserError(f"{place}: its DataStep has the name {entry.name!r}; give both the same")
        if entry.after not in get_args(After):
            raise UserError(f"{place}: after={entry.after!r}; choose {', '.join(get_args(After))}")
        if not 0 <= entry.limit <= 1:
            raise UserError(f"{place}: limit={entry.limit!r}; give a share from 0 to 1")
        if "<" in getattr(entry.process, "__qualname__", "<"):  # a lambda, a nested function or no function at all
            raise UserError(f"{place}: workers cannot import {entry.process!r}; put it at the top level of a module")
        try:
            entry.settings()
        except ValidationError as error:
            raise UserError(f"{explain(error, entry.settings, place)}; give every field a valid default") from error
        return super().register(name, entry)


DATA_STEPS = DataStepRegistry("data step")


def steps_after(name: After) -> list[DataStep]:
    """Return the registered steps that follow a built-in one, in their order."""
    return [step for _, step in DATA_STEPS.items() if step.after == name]


def settings_groups(module: str) -> type[Settings]:
    """Return a model with a settings group for each registered step; the base class if there is none.

    For pickle, `module` binds the model to the name `DataStepSettings`.
    """
    groups: dict[str, Any] = {
        name: (step.settings, Field(step.settings(), description=step.settings.__doc__))
        for name, step in DATA_STEPS.items()
    }
    if not groups:
        return Settings
    return create_model("DataStepSettings", __base__=Settings, __module__=module, **groups)


def limit_settings(module: str) -> type[LimitSettings]:
    """Return the model of the limits, with a further one for each registered step; the base class if there is none.

    For pickle, `module` binds the model to the name `LimitSettings`.
    """
    limits: dict[str, Any] = {
        name: (float, Field(step.limit, ge=0, le=1, description=f"Documents of the plug-in's step {name}."))
        for name, step in DATA_STEPS.items()
    }
    about = LimitSettings.__doc__
    if not limits:
        return LimitSettings
    return create_model("LimitSettings", __base__=LimitSettings, __module__=module, __doc__=about, **limits)
