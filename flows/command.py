"""The commands `python -m flows.*`: flags from a settings model, one embedded server, one line for an error."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import cyclopts

from flows.console import console
from flows.server import prefect_server
from flows.settings import resolve
from gpt2train.command import HELP_DEBUG, run_command
from gpt2train.settings import Settings

S = TypeVar("S", bound=Settings)


def command(flow: Callable[[S], str], model: type[S], check: Callable[[S], None], result: str) -> None:
    """Do what the command line of this process says, and exit; the arguments are those of `app_of`."""
    sys.exit(run_command(app_of(flow, model, check, result)))


def app_of(flow: Callable[[S], str], model: type[S], check: Callable[[S], None], result: str) -> cyclopts.App:
    """A command that parses the flags of `model`, checks them, runs the flow and prints where the result lies.

    Args:
        flow: takes the settings and returns a path.
        model: its settings; every field is a flag.
        check: raises `UserError` for what can be seen before anything starts.
        result: what the path is, for the last line.
    """
    app = cyclopts.App(name=f"python -m {flow.__module__}", help=f"{flow.__doc__} {HELP_DEBUG}", version_flags=[])

    @app.default
    def main(
        *,
        config: str | None = None,
        settings: Annotated[model | None, cyclopts.Parameter(name="*")] = None,  # type: ignore[valid-type]
    ) -> None:
        """Run the flow.

        Args:
            config: TOML file of settings; flags win over it, it wins over the preset.
            settings: Every setting, as a flag.
        """
        flags: dict[str, Any] = {} if settings is None else settings.model_dump(exclude_unset=True)
        resolved = resolve(model, config, flags)
        check(resolved)
        with prefect_server() as address:
            if address:
                console.print(f"while it runs: {address}")
            _take_up_environment()
            path = flow(resolved)
        print(f"{result}: {path}")

    return app


def _take_up_environment() -> None:
    """Let Prefect see the server that the environment names by now, and keep this module out of the workers."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    # Worker processes are spawned, and would import the program's main module, and Prefect with it (1-3 s each).
    main = sys.modules["__main__"]
    main.__spec__ = None
    vars(main).pop("__file__", None)
