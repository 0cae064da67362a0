"""Prefect flows of the project: data preparation, pretraining, evaluation, and the pipeline of all three.

Importing this package sets the environment variables that Prefect reads when it is imported: no usage reporting, and
the logging configuration of the commands. A variable that is already set is kept.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ("flows.dataprep", "flows.evaluate", "flows.finetune", "flows.pipeline", "flows.pretrain")

IS_COMMAND = sys.argv[:1] == ["-m"] and any(name in sys.orig_argv for name in COMMANDS)  # `-m` during this import

program = "python -m flows."  # what stands before the name of a flow where it is typed, here or by `gpt2train flow`

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
# No library waits for a hub, until an address of one is given (`gpt2train.store.hub`, which knows this value as ours).
os.environ.setdefault("HF_HUB_OFFLINE", "On")
os.environ.setdefault("PREFECT_LOGGING_SETTINGS_PATH", str(Path(__file__).with_name("logging.yml")))
# The Prefect UI shows the log lines of the steps and of the training ranks with the run that wrote them.
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "gpt2train")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")


def check_packages() -> None:
    """Exit if a file of the user's folder has the name of a package that a flow imports: `python -m` looks there first.

    Nothing of the other packages is imported before.
    """
    for package in ("gpt2train", "tasks"):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None and Path(spec.origin).parent != ROOT / package:
            remedy = "use `gpt2train flow`, which does not look into this folder, or start from another one"
            print(f"error: {spec.origin} hides the package {package} of gpt2train; {remedy}", file=sys.stderr)
            sys.exit(2)


def start_command(flow: str, words: Sequence[str]) -> None:
    """Prepare this process for the command of a flow; exit after a wrong argument, or after a help page."""
    check_packages()
    from gpt2train import begin_imports

    begin_imports()
    from gpt2train.command_line import exit_code, fail
    from gpt2train.errors import RunError, UserError
    from gpt2train.extras import PIPELINE, check_extra
    from gpt2train.plugins import load, load_plugins
    from gpt2train.store.process import prepare_streams, skip_teardown

    prepare_streams("stdout", "stderr")
    skip_teardown()
    # Imports create a million objects and no garbage; collection takes 10 % of their time. The command re-enables it.
    gc.disable()
    # The settings of the flows contain those of plug-ins, so they are read before a command can report their errors.
    try:
        check_extra(f"{program}{flow}", PIPELINE)
        # By their names, since this package stands below all its modules.
        if not any(word.startswith(("-h", "--help")) for word in words):
            load("flows.orchestration.server:check_home")()
            if not any(word.startswith("--dry-run") for word in words):
                load("flows.orchestration.server:start_early")()
        load_plugins()
    except UserError as error:
        sys.exit(fail(str(error), 2, "--debug" in words))
    settings = load("flows.ui.arguments:check_arguments")(flow, words)
    with contextlib.suppress(UserError, RunError, OSError):  # the run meets it again, and reports it
        if module := settings.worker_module():
            load("tasks.core.worker_pool:import_early")(module)
    if code := exit_code(load("flows.orchestration.server:check_settings"), "--debug" in words):
        sys.exit(code)


if IS_COMMAND:
    _command = next(name for name in COMMANDS if name in sys.orig_argv)
    start_command(_command.removeprefix("flows."), sys.orig_argv[sys.orig_argv.index(_command) + 1 :])
