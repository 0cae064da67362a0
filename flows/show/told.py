"""Errors that a person has made, or understands, as one line in the log of a run: Prefect would add its own insides.

The engine logs each exception with a traceback of 40 to 100 lines, twice, of which all but the last are Prefect's. For
an error that names the thing, the place and the remedy that is a wall before the remedy. Any other exception is a bug
of ours, and keeps its traceback.
"""

import logging

from prefect.exceptions import SignatureMismatchError

from gpt2train.errors import RunError, UserError

# SignatureMismatchError: a parameter that the flow does not have, given to the API by something else than Prefect's UI
# and commands, which refuse it before.
TOLD = (UserError, RunError, SignatureMismatchError)
LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def tell_once(record: logging.LogRecord) -> bool:
    """Leave of a record about an understood error its one line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, TOLD):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


def install() -> None:
    """Have Prefect's loggers tell such errors in one line, and let our own tell what it has to say."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(tell_once)  # adding the same one again does nothing
    # A worker's flow is loaded by a Prefect whose logging is set up already: it gives our logger a handler and no
    # level, so that of the root, WARNING, would hold back the lines of the steps and of the ranks.
    ours = logging.getLogger("gpt2train")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.INFO)
