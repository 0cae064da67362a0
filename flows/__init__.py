"""Prefect flows of the project: data preparation, pretraining, evaluation, and the pipeline of all three.

Importing this package sets the environment variables that Prefect reads when it is imported: no usage reporting, and
the logging configuration of the commands. A variable that is already set is kept.
"""

import gc
import os
import sys
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.io.command_line import fail
from gpt2train.plugins import load, load_plugins
from gpt2train.store.process import skip_teardown

COMMANDS = ("flows.dataprep", "flows.evaluate", "flows.finetune", "flows.pipeline", "flows.pretrain")

IS_COMMAND = sys.argv[:1] == ["-m"] and any(name in sys.orig_argv for name in COMMANDS)  # `-m` during this import

if IS_COMMAND:
    skip_teardown()
    # Imports create a million objects and no garbage; collection takes 10 % of their time. The command re-enables it.
    gc.disable()

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is loaded from a hub, so never wait for one
os.environ.setdefault("PREFECT_LOGGING_SETTINGS_PATH", str(Path(__file__).with_name("logging.yml")))
# The Prefect UI shows the log lines of the steps and of the training ranks with the run that wrote them.
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "gpt2train")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")

if IS_COMMAND:
    # The settings of the flows contain those of plug-ins, so they are read before a command can report their errors.
    try:
        load_plugins()
    except UserError as error:
        sys.exit(fail(str(error), 2, "--debug" in sys.orig_argv))
    # By its name, since this package stands below all its modules.
    flow = next(name for name in COMMANDS if name in sys.orig_argv).removeprefix("flows.")
    load("flows.ui.arguments:check_arguments")(flow)
