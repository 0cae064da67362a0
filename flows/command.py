"""Command-line entry points `python -m flows.*`: flags from a settings model, embedded server, one-line errors."""

import contextlib
import functools
import gc
import logging
import sys
from typing import TypeVar

import cyclopts

from flows.compat.prefect import refresh_settings
from flows.orchestration.flow import SettingsFlow
from flows.orchestration.server import key_file, prefect_server
from flows.settings import FlowSettings
from flows.ui import arguments
from gpt2train import end_imports
from gpt2train.command_line import exit_code, run_command
from gpt2train.store.process import CLOSING, ends_with_terminal, set_exit_status
from gpt2train.store.progress import console
from tasks.core.worker_pool import early_pool

S = TypeVar("S", bound=FlowSettings)


def command(flow: SettingsFlow[S]) -> None:
    """Run the command line of this process and exit with its status; see `app_of`.

    The settings are those that `start_command` has resolved before Prefect was imported, if it began this process.
    """
    logging.raiseExceptions = False  # or Prefect prints each failure to send log lines to a server that is away
    settings = arguments.resolved
    if isinstance(settings, flow.model):
        end_imports()
        code = exit_code(lambda: start(flow, settings), "--debug" in sys.argv)
    else:
        code = run_command(app_of(flow))
    set_exit_status(code)
    sys.exit(code)


def app_of(flow: SettingsFlow[S]) -> cyclopts.App:
    """Command-line app of a flow, in which every field of its settings is a flag; see `start`."""
    return arguments.arguments_app(flow.name, flow.model, flow.__doc__ or "", functools.partial(start, flow))


def start(flow: SettingsFlow[S], settings: S) -> None:
    """Check the settings of a flow, run it beside a Prefect server, and print the path of its result; or its plan."""
    run = flow.planned(settings)
    if settings.dry_run:
        run.dry_run(print)
        return
    run.check()
    with contextlib.ExitStack() as stack:
        if module := settings.worker_module():
            stack.enter_context(early_pool(settings.workers, module))
        address = stack.enter_context(prefect_server(console.print))
        if address:
            console.print(f"while it runs: {address} (the password is in {key_file()})")
        if ends_with_terminal():
            console.print(CLOSING)
        refresh_settings(heartbeats=address is None)
        # All objects so far live until the end. `flows/__init__.py` disabled the collector; freeze them for it.
        gc.freeze()
        gc.enable()
        path = flow.start(run)
    print(f"{run.result_name}: {path}")
