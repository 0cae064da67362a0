"""Settings model of a command's flags: values are checked, but not against values that a preset or a file may set."""

import inspect
from copy import copy
from functools import cache
from typing import Any, Literal, cast

from pydantic import BaseModel, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from gpt2train.settings import Settings


@cache
def flags_model(model: type[Settings]) -> type[Settings]:
    """Return a subclass of a settings model, at all depths, without the checks of one value by another.

    The flags of a command are a part of its settings: `--train.steps 60` suits the warm-up of one preset and not that
    of another. The whole is checked when the layers are merged. A model without such checks is returned as it is.
    """
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            part = flags_model(field.annotation)
            if part is not field.annotation:
                fields[name] = (part, _with_default(field, part))
    found = model.__pydantic_decorators__
    checks: dict[str, Any] = {
        name: model_validator(mode="after")(_accept)
        for name, check in found.model_validators.items()
        if check.info.mode == "after"
    }
    # Options of a model family or an objective are checked and completed by the values of other fields.
    checks |= {
        name: field_validator(*check.info.fields)(_accept)
        for name, check in found.field_validators.items()
        if check.info.mode == "after" and len(inspect.signature(check.func).parameters) > 1
    }
    if not fields and not checks:
        return model
    made = create_model(
        f"{model.__name__}Flags",
        __base__=model,
        __module__=model.__module__,
        __doc__=model.__doc__,
        __validators__=checks,
        **fields,
    )
    return cast(type[Settings], made)


def dump(settings: BaseModel, mode: Literal["python", "json"], *, given: bool = False) -> dict[str, Any]:
    """Dump settings, with fields that a dump leaves out by `exclude_if`: 0 epochs take the place of a preset's 60.

    With `given`, only what was given is dumped, not defaults.
    """
    dumped = settings.model_dump(mode=mode, exclude_unset=given)
    for name in settings.model_fields_set if given else type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            dumped[name] = dump(value, mode, given=given)
        else:
            dumped.setdefault(name, value)
    return dumped


def _with_default(field: FieldInfo, part: type[Settings]) -> FieldInfo:
    """Return a copy of a field whose default is of the subclass."""
    own = copy(field)
    if isinstance(field.default, Settings):
        own.default = part.model_validate(field.default.model_dump(exclude_unset=True))
    return own


def _accept(value: Any) -> Any:
    return value
