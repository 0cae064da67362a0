"""The commands `python -m flows.*`: flags from a settings model, one embedded server, one line for an error."""

import gc
import sys
from typing import Annotated, Any, TypeVar

import cyclopts

from flows.offer import Offer
from flows.server import prefect_server
from flows.settings import resolve
from flows.show.console import console
from gpt2train.command import HELP_DEBUG, run_command
from gpt2train.errors import UserError
from gpt2train.settings import Settings

S = TypeVar("S", bound=Settings)


def command(flow: Offer[S], result: str) -> None:
    """Do what the command line of this process says, and exit; the arguments are those of `app_of`."""
    sys.exit(run_command(app_of(flow, result)))


def app_of(flow: Offer[S], result: str) -> cyclopts.App:
    """A command that parses the flags of a flow's settings, checks them, runs it and prints where the result lies.

    Args:
        flow: returns a path; every field of its settings is a flag.
        result: what the path is, for the last line.
    """
    app = cyclopts.App(name=f"python -m {flow.__module__}", help=f"{flow.__doc__} {HELP_DEBUG}", version_flags=[])

    @app.default
    def main(
        *,
        config: str | None = None,
        settings: Annotated[flow.model | None, cyclopts.Parameter(name="*")] = None,  # type: ignore[name-defined]
    ) -> None:
        """Run the flow.

        Args:
            config: TOML file of settings, or a deployment's name; flags win over it, it wins over the preset.
            settings: Every setting, as a flag.
        """
        flags: dict[str, Any] = {} if settings is None else settings.model_dump(exclude_unset=True)
        resolved = resolve(flow.model, config, flags)
        flow.check(resolved)
        if getattr(resolved, "dry_run", False):
            tell_plan(resolved)
            return
        with prefect_server() as address:
            if address:
                console.print(f"while it runs: {address}")
            take_up_environment()
            # What is there now stays to the end: the collector, off since `flows/__init__.py`, need not look at it.
            gc.freeze()
            gc.enable()
            path = flow(config=None, **resolved.model_dump(mode="json"))
        print(f"{result}: {path}")

    return app


def tell_plan(settings: Any) -> None:
    """Print what a run with these settings would do and take.

    Raises:
        UserError: this machine lacks something for it.
    """
    from flows.ahead.fit import outlook
    from flows.ahead.preview import preview  # which knows the flows, and those this module

    ahead = outlook(settings)
    print(preview(settings, ahead))
    if ahead.missing:
        raise UserError(f"missing: {', '.join(ahead.missing)}")


def take_up_environment() -> None:
    """Let Prefect see the server that the environment names by now, and keep this module out of the workers."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    # Worker processes are spawned, and would import the program's main module, and Prefect with it (1-3 s each).
    main = sys.modules["__main__"]
    main.__spec__ = None
    vars(main).pop("__file__", None)
