"""Command-line entry points `python -m flows.*`: flags from a settings model, embedded server, one-line errors."""

import gc
import logging
import sys
from typing import TypeVar

import cyclopts

from flows.compat.prefect import refresh_settings
from flows.dry_run.plan import dry_run
from flows.orchestration.flow import SettingsFlow
from flows.orchestration.server import key_file, prefect_server
from flows.ui.arguments import arguments_app
from gpt2train.command_line import run_command
from gpt2train.settings import Settings
from gpt2train.store.process import CLOSING, ends_with_terminal, set_exit_status
from gpt2train.store.progress import console

S = TypeVar("S", bound=Settings)


def command(flow: SettingsFlow[S], result: str) -> None:
    """Run the command line of this process and exit with its status; see `app_of`."""
    logging.raiseExceptions = False  # or Prefect prints each failure to send log lines to a server that is away
    code = run_command(app_of(flow, result))
    set_exit_status(code)
    sys.exit(code)


def app_of(flow: SettingsFlow[S], result: str) -> cyclopts.App:
    """Command-line app that parses a flow's settings from flags, checks them, runs the flow and prints its result.

    Args:
        flow: the flow to run; it returns a path, and every field of its settings is a flag.
        result: name of that path in the last line of output.
    """

    def start(settings: S) -> None:
        run = flow.planned(settings)
        if getattr(settings, "dry_run", False):
            dry_run(run, flow.check, print)
            return
        flow.check(run)
        with prefect_server(console.print) as address:
            if address:
                console.print(f"while it runs: {address} (the password is in {key_file()})")
            if ends_with_terminal():
                console.print(CLOSING)
            refresh_prefect_settings()
            # All objects so far live until the end. `flows/__init__.py` disabled the collector; freeze them for it.
            gc.freeze()
            gc.enable()
            path = flow.start(run)
        print(f"{result}: {path}")

    return arguments_app(flow.name, flow.model, flow.__doc__ or "", start)


def refresh_prefect_settings() -> None:
    """Make Prefect read the server address from the environment, and keep worker processes from importing __main__."""
    refresh_settings()
    # Spawned worker processes would import the main module, and with it Prefect (1-3 s each).
    main = sys.modules["__main__"]
    main.__spec__ = None
    vars(main).pop("__file__", None)
