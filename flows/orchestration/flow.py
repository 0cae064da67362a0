"""Prefect flow with one parameter per field of a settings model, and a UI form generated from the model.

Prefect overrides the parameters of a deployment with those of a run one by one, so each field is a parameter of its
own: `train={"steps": 100}` keeps the rest of the deployment's preset. For the same reason the form has no defaults: a
filled-in default would count as given and override the preset. The help texts name the defaults instead.
"""

import contextvars
import functools
import inspect
import json
import logging
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args

from prefect.artifacts import create_markdown_artifact
from prefect.exceptions import ObjectNotFound, ParameterBindError
from prefect.states import State
from pydantic import BaseModel, WithJsonSchema
from pydantic_core import MISSING

from flows.compat.prefect import (
    ParametersFlow,
    explain_refusal,
    explain_results,
    final_state,
    is_retried,
    keep_running_without_slot,
    set_signature,
    shield_temporary_server,
)
from flows.orchestration.run_context import run_context
from flows.orchestration.run_guard import RunEndedError, await_server
from flows.orchestration.server import is_embedded
from flows.orchestration.task_runner import rename_run
from flows.recipe import PlannedRun
from flows.settings import SOURCES, FlowSettings, resolve
from flows.ui import log_filter
from flows.ui.flags import dump
from gpt2train.errors import RunError, UserError, redact, redact_values, redacted_errors
from gpt2train.settings import Settings, described

S = TypeVar("S", bound=FlowSettings)

log = logging.getLogger("gpt2train")

CONFIG = "config"
CONFIG_HELP = (
    "Base settings of the run: the name of a deployment, as pretrain/345m, or a TOML file that the worker can read. "
    "The other parameters override it, key by key."
)
MAX_PARAMETER_BYTES = 500_000  # Prefect's server refuses a run with 524,288
SHOWN_ITEMS = 20
DEFAULT_HELP = "Default, unless preset or config sets it: {}."


@dataclass
class StartedRun:
    """A run that a command has checked before it starts the flow, which takes it over, and how its work has ended."""

    run: PlannedRun[Any]
    result: str | None = None
    error: Exception | None = None


_started_run: contextvars.ContextVar[StartedRun | None] = contextvars.ContextVar("started_run", default=None)


def started_run() -> StartedRun | None:
    """Return the run that a command has started; None in a run of a deployment.

    A function of the module: Ray and Dask pickle a flow's own function with the variables that it uses, and a context
    variable cannot be pickled.
    """
    return _started_run.get()


# Settings with which the form begins. Those of a model come after its bases', the last base first.
FIRST = (*SOURCES, "model", "task", "run", "data", "tokens", "output", "preset", "train", "launch")
# Default of every parameter. Pydantic leaves it out of a schema, so the form of the UI neither shows nor sends it.
NOT_GIVEN = MISSING


class SettingsFlow(ParametersFlow, Generic[S]):
    """A Prefect flow whose parameters are the fields of a settings model, and `config`; see `settings_flow`."""

    planned: type[PlannedRun[S]]

    @property
    def model(self) -> type[S]:
        """Settings model of the flow."""
        return self.planned.model

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the flow of a command by its name: Ray and Dask would copy its class, which stands in `__main__`."""
        if self.planned.__module__ == "__main__":
            return pkgutil.resolve_name, (f"flows.{self.planned.name}:{self.planned.name}",)
        return super().__reduce_ex__(protocol)

    def __call__(self, *args: Any, **parameters: Any) -> Any:
        """Run the flow with settings by name.

        Raises:
            UserError: a name is not one of its settings; Prefect's own message has the whole signature, 60 kB.
        """
        try:
            return super().__call__(*args, **parameters)
        except ParameterBindError as error:
            remedy = f"python -m flows.{self.planned.name} --help-all lists them"
            raise UserError(f"{str(error).partition(chr(10))[0].rstrip('.')}; {remedy}") from None

    def start(self, run: PlannedRun[S]) -> str:
        """Run the flow in this process, with the inputs that the check of `run` has found.

        The result is that of the work, also if the Prefect server is gone when it ends.
        """
        started = StartedRun(run)
        token = _started_run.set(started)
        try:
            return self(config=None, **dump(run.settings, "json"))
        except Exception as error:
            if started.error is not None:
                raise started.error from error
            if started.result is None:  # the engine has not begun the run
                if reason := (None if is_embedded() else explain_refusal(error)) or explain_results():
                    raise reason from error
                raise
            text = "it does not know the run" if isinstance(error, ObjectNotFound) else error
            log.warning("Prefect's server did not take the end of the run, whose work is complete (%s)", text)
            return started.result
        finally:
            _started_run.reset(token)

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the given settings for the run page, without secrets of URLs; of too many, the first of each list."""
        given = {name: value for name, value in parameters.items() if value is not NOT_GIVEN}
        plain: dict[str, Any] = redact_values(super().serialize_parameters(given))
        return plain if len(json.dumps(plain)) < MAX_PARAMETER_BYTES else _shortened(plain)


def _shortened(value: Any) -> Any:
    """Value with at most `SHOWN_ITEMS` items of each list."""
    if isinstance(value, Mapping):
        return {name: _shortened(inner) for name, inner in value.items()}
    if isinstance(value, list) and len(value) > SHOWN_ITEMS:
        return [*value[:SHOWN_ITEMS], f"… and {len(value) - SHOWN_ITEMS:,} more"]
    return value


def settings_flow(kind: type[PlannedRun[S]]) -> SettingsFlow[S]:
    """Return the Prefect flow of a class of runs, to be called with settings by name: `flow(**given)`.

    A run that a command has started is taken over as it is: its settings are resolved and checked. Any other, as that
    of a deployment, resolves and checks its parameters first. A `UserError` or `RunError` ends the run in the state
    `Failed`, with the error's one line as the state's message.
    """
    log_filter.install()
    keep_running_without_slot()
    shield_temporary_server()

    @functools.wraps(kind.recipe, assigned=("__module__",))
    def execute(**parameters: Any) -> "str | State[Any]":
        started = started_run()
        with redacted_errors():  # the message of an error becomes the message of the run's state
            try:
                run = started.run if started else kind(resolve(kind.model, *split_parameters(kind.model, parameters)))
                rename_run(run_name(run))
                if started is None:
                    if run.settings.dry_run:
                        return run.dry_run(show_plan)
                    run.check()
                with run_context(run.settings, plan=run.plan_page if run.has_plan else None) as runner:
                    result = run.conclude(run.recipe(runner), runner.publisher)
                if started:
                    started.result = result
                return result
            except (UserError, RunError) as error:
                if started:
                    started.error = error
                if isinstance(error, RunEndedError):
                    return final_state(error, error.state)
                if is_retried():
                    raise
                return final_state(error)
            except Exception as error:
                if started:
                    started.error = error
                raise
            finally:
                if started:
                    await_server()

    execute.__name__ = execute.__qualname__ = kind.name
    execute.__doc__ = kind.__doc__
    flow: SettingsFlow[S] = SettingsFlow(execute, name=kind.name)  # type: ignore[arg-type]  # Prefect accepts a returned state
    flow.planned = kind
    set_signature(execute, signature_of(kind.model))  # after Prefect has read it: a command needs no form
    return flow


def run_name(run: PlannedRun[Any]) -> str:
    """Return the name of a run in the UI: flow, sources, preset, layout and output, as `pretrain-345m-tp2-dp4-out`."""
    return redact("-".join(filter(None, [run.name, *run.subject()])))


def show_plan(text: str) -> None:
    """Publish the plan of a dry run on the run page."""
    create_markdown_artifact(f"```\n{text}\n```\n", key="plan", description="steps and resources of the run")


def split_parameters(model: type[Settings], parameters: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Split the parameters of a run into the value of `config` and the given settings, nested."""
    given = {name: value for name, value in parameters.items() if value is not NOT_GIVEN}
    config = given.pop(CONFIG, None) or None  # empty: a form's field
    return config, _without_nulls(model, given)


def _without_nulls(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Given settings without the nulls of empty form fields; null is a value only if the setting may be None."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        inner = None if field is None else field.annotation
        if field is not None and value is None and type(None) not in get_args(inner):
            continue
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, BaseModel):
            value = _without_nulls(inner, value)
        kept[name] = value
    return kept


@dataclass(frozen=True)
class FormField:
    """Annotation of a parameter that is a field of a settings model; its JSON schema is made when a form needs it."""

    model: type[Settings]
    name: str

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        """Return the schema of the field in the form of the UI."""
        return dict(settings_schema(self.model)["properties"][self.name])


def signature_of(model: type[Settings]) -> inspect.Signature:
    """Signature of a flow, annotated so that Prefect uses the model's JSON schema: bounds, help texts and choices.

    Required fields have no default; all others default to `NOT_GIVEN`.
    """
    fields = model.model_fields
    annotations = {name: FormField(model, name) for name in (*(one for one in FIRST if one in fields), *fields)}
    config = {"title": CONFIG, "type": "string", "description": CONFIG_HELP}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in fields and fields[name].is_required() else NOT_GIVEN,
            annotation=Annotated[Any, annotation],
        )
        for name, annotation in {CONFIG: WithJsonSchema(config), **annotations}.items()
    ]
    return inspect.Signature(parameters)


@functools.cache
def settings_schema(model: type[Settings]) -> dict[str, Any]:
    """JSON schema of a settings model for the UI form: references inlined, no defaults, titles are the field names."""
    schema = described(model).model_json_schema()
    definitions = schema.pop("$defs", {})
    form: dict[str, Any] = _form_schema(schema, definitions)
    return form


def _form_schema(schema: Any, definitions: Mapping[str, Any], name: str | None = None) -> Any:
    if isinstance(schema, list):
        return [_form_schema(item, definitions) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    own = {key: value for key, value in schema.items() if key != "$ref"}
    if "$ref" in schema:
        own = {**definitions[schema["$ref"].rsplit("/", 1)[1]], **own}
    default = own.pop("default", None)
    if own.get("type") == "boolean":
        # Prefect's form shows a switch for a boolean, and sends false for an untouched one. An enum avoids that.
        own = {key: value for key, value in own.items() if key != "type"} | {"enum": [True, False]}
    if name is not None:
        own["title"] = name
        help_text = " ".join(own.get("description", "").split())
        if default is not None and not isinstance(default, Mapping):
            is_text = isinstance(default, str) and default  # as a user would type it into the form
            shown = default if is_text else json.dumps(default, ensure_ascii=False)
            help_text = f"{help_text} {DEFAULT_HELP.format(shown)}"
        own["description"] = help_text
    return {
        key: {field: _form_schema(value, definitions, field) for field, value in inner.items()}
        if key == "properties"
        else _form_schema(inner, definitions)
        for key, inner in own.items()
    }
