"""The commands `python -m flows.*`: flags from a settings model, one embedded server, one line for an error."""

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import cyclopts

from flows.server import prefect_server
from flows.settings import OutputSettings, resolve
from gpt2train.command import run_command
from tasks.storage import Folder

log = logging.getLogger("gpt2train")

S = TypeVar("S", bound=OutputSettings)


def command(run: Callable[[S], str], model: type[S], result: str) -> None:
    """Parse the flags of `model`, run the flow, print where the result lies, and exit.

    Args:
        run: the flow; takes the settings and returns a path.
        model: its settings.
        result: what the path is, for the last line.
    """
    app = cyclopts.App(name=f"python -m flows.{run.__name__}", help=run.__doc__, version_flags=[])

    @app.default
    def main(
        *,
        config: str | None = None,
        debug: bool = False,
        settings: Annotated[model | None, cyclopts.Parameter(name="*")] = None,  # type: ignore[valid-type]
    ) -> None:
        """Run the flow.

        Args:
            config: TOML file of settings; flags win over it.
            debug: Show the traceback of an error.
            settings: Every setting, as a flag.
        """
        flags: dict[str, Any] = {} if settings is None else settings.model_dump(exclude_unset=True)
        resolved = resolve(model, config, flags)
        Folder(resolved.output).check_writable()
        with prefect_server() as address:
            if address:
                log.info("watch it at %s", address)
            path = _run(run, resolved)
        print(f"{result}: {path}")

    run_command(app, sys.argv[1:])


def _run(run: Callable[[S], str], settings: S) -> str:
    """Run the flow against the server that the environment names by now."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    with contextlib.suppress(ImportError):
        # Worker processes are spawned: they would import this program's main module, and Prefect with it (1-3 s each).
        main = sys.modules["__main__"]
        main.__spec__ = None
        vars(main).pop("__file__", None)
    return run(settings)
