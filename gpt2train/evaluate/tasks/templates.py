"""Templates and expressions of a task, over the fields of a row: Jinja in a sandbox; does not import torch.

The texts of lm-evaluation-harness's tasks (`doc_to_text`) are Jinja too, and can be copied.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpt2train.errors import UserError

Row = Mapping[str, Any]


class RowError(ValueError):
    """A row does not fit the task; the message says why."""


def _regex_replace(text: str, pattern: str, value: str = "") -> str:
    return re.sub(pattern, value, text)


ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
ENVIRONMENT.filters["regex_replace"] = _regex_replace


def text_of(template: str, where: str) -> Callable[[Row], str]:
    """Compile a template to a function from a row to its text.

    Args:
        template: Jinja template.
        where: task file and field, for errors of syntax.

    Raises:
        UserError: the template is malformed.
    """
    try:
        compiled = ENVIRONMENT.from_string(template)
    except TemplateSyntaxError as error:
        raise UserError(f"{where}: {error.message}; correct the template") from error
    return lambda row: _checked(lambda: compiled.render(row))


def value_of(expression: str, where: str) -> Callable[[Row], Any]:
    """Compile an expression to a function from a row to its value; errors as `text_of`."""
    try:
        compiled = ENVIRONMENT.compile_expression(expression, undefined_to_none=False)
    except TemplateSyntaxError as error:
        raise UserError(f"{where}: {error.message}; correct the expression") from error

    def value(row: Row) -> Any:
        found = compiled(row)
        if isinstance(found, StrictUndefined):
            str(found)  # raises UndefinedError, which names the field
        return list(found) if isinstance(found, Iterator) else found  # filters as `map` work only when they are read

    return lambda row: _checked(lambda: value(row))


def _checked(work: Callable[[], Any]) -> Any:
    """Return the result of Jinja's work; whatever a row makes it raise is an error of that row."""
    try:
        return work()
    except Exception as error:
        raise RowError(" ".join(str(error).split()) or type(error).__name__) from error
