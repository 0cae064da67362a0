"""Rendering of chat templates, in a process of its own that ends if a template takes too much time or memory.

A template is a program, and comes with a model. Jinja's sandbox keeps it from files and the network, but bounds no
computation: `10 ** (10 ** 9)` is one operation, which no exception interrupts. Here the kernel ends the process.

The process reads a request per line and answers with a line; it imports Jinja and nothing of this package. The names in
a template are those that transformers defines.
"""

import contextlib
import datetime
import functools
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 512 * 2**20  # bytes of address space
MAX_TEXT = 16 * 2**20  # characters of all texts of a request
MAX_MESSAGE = 200  # characters


class _Generation(Extension):
    """The block `{% generation %}`, by which some templates mark what the assistant says."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which lead to the interpreter."""

    def __init__(self, *given: Any, **names: Any) -> None:
        for name in dict(*given, **names):
            _check_name(name)
        super().__init__(*given, **names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} begins with an underscore")


def _raise(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=1)
def compiled(text: str) -> jinja2.Template:
    """Compile a template, with the names that transformers defines."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _raise, "namespace": _Namespace, "dict": lambda *a, **b: dict(*a, **b)}
    return environment.from_string(text)


def clock(date: str | None) -> Callable[[str], str]:
    """Return the function by which templates write the date: a fixed one, or now."""
    now = datetime.datetime.fromisoformat(date) if date else datetime.datetime.now()
    return now.strftime


def render(request: dict[str, Any]) -> list[str]:
    """Render beginnings of a conversation: `cuts` are pairs of a number of messages and `add_generation_prompt`."""
    template, texts, length = compiled(request["template"]), [], 0
    known = {**request["tokens"], "tools": request["tools"], "documents": None}
    known["strftime_now"] = clock(request["date"])
    for count, prompts in request["cuts"]:
        text = template.render(known, messages=request["messages"][:count], add_generation_prompt=prompts)
        length += len(text)
        if length > MAX_TEXT:
            raise ValueError(f"it writes over {MAX_TEXT:,} characters")
        texts.append(text)
    return texts


def respond(line: bytes) -> bytes:
    """Return the answer to a request: `{"texts": […]}` or `{"error": "…"}`."""
    try:
        answer: dict[str, Any] = {"texts": render(json.loads(line))}
    except Exception as error:  # noqa: BLE001 - a template can raise any
        kind = "" if isinstance(error, jinja2.TemplateError | ValueError) else f"{type(error).__name__}: "
        place = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        answer = {"error": " ".join(f"{kind}{error}{place}".split())[:MAX_MESSAGE] or type(error).__name__}
    return json.dumps(answer).encode() + b"\n"


def main() -> None:
    """Answer requests until the input ends; the argument is the limit of a request, in seconds of processor time."""
    seconds = float(sys.argv[1])
    if sys.platform != "win32":
        import resource

        with contextlib.suppress(ValueError, OSError):  # not on every system
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    limited = hasattr(signal, "setitimer")
    for line in sys.stdin.buffer:
        if limited:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process, in whatever operation it is
        answer = respond(line)
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
