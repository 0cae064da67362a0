"""A flow as the API and the UI offer it: a parameter for each field of its settings, and a form made from the model.

Prefect lays the parameters of a run over those of its deployment one by one, so each field is a parameter of its own:
`train={"steps": 100}` leaves the rest of the deployment's preset alone. For the same reason the form has no defaults:
what it would fill in would count as given, and win over the preset. The help texts name them instead.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, get_args

from prefect import Flow
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.states import Failed, State
from pydantic import BaseModel, WithJsonSchema
from pydantic_core import to_jsonable_python

from flows.settings import resolve
from flows.show import told
from gpt2train.errors import RunError, UserError
from gpt2train.settings import Settings

S = TypeVar("S", bound=Settings)

CONFIG = "config"
CONFIG_HELP = (
    "Settings below the parameters: the name of a deployment's own, as pretrain/345m, or a TOML file that the worker "
    "sees. What is given here besides wins over it, key by key."
)
DEFAULT_HELP = "Default, below preset and config: {}."


class _NotGiven:
    """The default of every parameter. It has no JSON, so the form of the UI shows and sends none."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = _NotGiven()
# Pydantic tells that it leaves a default out of a schema for that reason, which is the purpose.
warnings.filterwarnings("ignore", message="Default value not given is not JSON serializable")


class Offer(Flow[..., str], Generic[S]):
    """A Prefect flow whose parameters are the fields of a settings model, and `config`.

    Attributes:
        model: the settings.
        check: raises `UserError` for what can be seen before anything starts.
    """

    model: type[S]
    check: Callable[[S], None]

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Leave it to the flow itself, which says what is wrong in one line."""
        return parameters

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """What was given, for the run's page. Prefect's own way imports FastAPI: 0.1 s of the start."""
        given = {name: value for name, value in parameters.items() if value is not NOT_GIVEN}
        plain: dict[str, Any] = to_jsonable_python(given, fallback=str)
        return plain


def offer(name: str, model: type[S], check: Callable[[S], None]) -> Callable[[Callable[[S], str]], Offer[S]]:
    """Make a flow of a function of settings.

    Args:
        name: of the flow, the first half of its deployments' names.
        model: its settings.
        check: raises `UserError` for what can be seen before anything starts. A command has done so; a run of a
            deployment does it first of all.

    Returns:
        A decorator. The flow is called with settings by name: `flow(**given)`. A mistake of the user, or a failure
        that is understood, ends the run in the state `Failed` with its one line as the message.
    """

    told.install()

    def decorate(function: Callable[[S], str]) -> Offer[S]:
        @functools.wraps(function)
        def run(**parameters: Any) -> "str | State[Any]":
            try:
                config, given = split(model, parameters)
                settings = resolve(model, config, given)
                if _deployed():
                    check(settings)
                if getattr(settings, "dry_run", False):
                    return show_preview(settings)
                return function(settings)
            except (UserError, RunError) as error:
                # Returned, not raised: the engine would put words of its own before the message.
                return Failed(message=str(error), data=error)

        run.__signature__ = signature_of(model)  # type: ignore[attr-defined]
        made: Offer[S] = Offer(run, name=name)  # type: ignore[arg-type]  # it may return a state, as Prefect allows
        made.model, made.check = model, check
        return made

    return decorate


def show_preview(settings: Settings) -> str:
    """Show on the run page what the run would do; the text."""
    from flows.ahead.fit import outlook
    from flows.ahead.preview import preview  # which knows the flows, and those this module

    text = preview(settings, outlook(settings))
    create_markdown_artifact(f"```\n{text}\n```\n", key="plan", description="what the run would do, and what it takes")
    return text


def _deployed() -> bool:
    """Whether this run comes from a deployment."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def split(model: type[Settings], parameters: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The configuration that a run names, and the settings that it was given, nested."""
    given = {name: value for name, value in parameters.items() if value is not NOT_GIVEN}
    config = given.pop(CONFIG, None)
    return config, _without_nulls(model, given)


def _without_nulls(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given without the nulls of empty fields: null is a value only where the setting may be None."""
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


def signature_of(model: type[Settings]) -> inspect.Signature:
    """The parameters of a flow, annotated so that Prefect finds the model's own JSON schema: bounds, help and choices.

    Required fields have no default; the others have `NOT_GIVEN`.
    """
    config = {"title": CONFIG, "type": "string", "description": CONFIG_HELP}
    schema = form(model)
    parameters = []
    for name, shown in {CONFIG: config, **schema["properties"]}.items():
        required = name in schema.get("required", ())
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if required else NOT_GIVEN,
                annotation=Annotated[Any, WithJsonSchema(shown)],
            )
        )
    return inspect.Signature(parameters)


def form(model: type[Settings]) -> dict[str, Any]:
    """The JSON schema of a settings model as a form: one nested object, no defaults, fields under their own names."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    shown: dict[str, Any] = _shown(schema, definitions)
    return shown


def _shown(schema: Any, definitions: Mapping[str, Any], name: str | None = None) -> Any:
    if isinstance(schema, list):
        return [_shown(item, definitions) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    own = {key: value for key, value in schema.items() if key != "$ref"}
    if "$ref" in schema:
        own = {**definitions[schema["$ref"].rsplit("/", 1)[1]], **own}
    default = own.pop("default", None)
    if own.get("type") == "boolean":
        # Prefect's form shows a switch for a boolean, and sends false for one that nobody touched.
        own = {key: value for key, value in own.items() if key != "type"} | {"enum": [True, False]}
    if name is not None:
        own["title"] = name
        help_text = " ".join(own.get("description", "").split())
        if default is not None and not isinstance(default, Mapping):
            help_text = f"{help_text} {DEFAULT_HELP.format(_said(default))}"
        own["description"] = help_text
    return {
        key: {field: _shown(value, definitions, field) for field, value in inner.items()}
        if key == "properties"
        else _shown(inner, definitions)
        for key, inner in own.items()
    }


def _said(default: Any) -> str:
    """A default as a person writes it in a form."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return ", ".join(map(_said, default)) or "none"
    return repr(default) if default == "" else str(default)
