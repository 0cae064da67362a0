"""What happens, in order: one flow a file.

Importing this package settles what must stand in the environment before Prefect is imported: no usage reporting, and
a console that belongs to the commands. Each can be overridden from outside.
"""

import gc
import os
import sys
from pathlib import Path

COMMANDS = ("flows.dataprep", "flows.evaluate", "flows.pipeline", "flows.pretrain")

if sys.argv[:1] == ["-m"] and any(name in sys.orig_argv for name in COMMANDS):  # `-m` until the module is found
    # Imports make no garbage, but a million objects to look for it in: a tenth of their time. The command turns it on.
    gc.disable()

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here loads from a hub, so nothing may wait for one
os.environ.setdefault("PREFECT_LOGGING_SETTINGS_PATH", str(Path(__file__).with_name("logging.yml")))
# Log lines of the steps and of the training ranks appear in the Prefect UI beside the run that wrote them.
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "gpt2train")
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
