"""Log filters: one line instead of a traceback for expected errors, ends of task runs, redaction of secrets.

Prefect's engine logs each exception twice, with a traceback of 40 to 100 lines that are almost all Prefect's own. For
an expected error, whose message names the thing, the place and the remedy, the traceback only hides the remedy. Any
other exception is a bug in this program and keeps its traceback.
"""

import logging

from prefect.exceptions import SignatureMismatchError

from gpt2train.errors import RunError, UserError, redact, redacted_traceback

# SignatureMismatchError: a request to the API with a parameter that the flow does not have. Prefect's UI and commands
# reject such a parameter themselves.
EXPECTED_ERRORS = (UserError, RunError, SignatureMismatchError)
PLAIN_ENDS = tuple(f"Finished in state {name}(" for name in ("Completed", "Cached"))
LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def drop_expected_traceback(record: logging.LogRecord) -> bool:
    """Replace the record of an expected error by the error's one-line message. Returns True: the record is kept."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, EXPECTED_ERRORS):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


def drop_plain_end(record: logging.LogRecord) -> bool:
    """Drop the end of a task run that has completed, and name that of any other one.

    The UI's list of log lines has no names: a step of a hundred batches was a hundred lines "Finished in state
    Completed()". The state is on the timeline, and each step logs a line of its own.
    """
    if isinstance(record.msg, str) and record.msg.startswith("Finished in state "):
        if record.msg.startswith(PLAIN_ENDS):
            return False
        record.msg, record.args = f"{getattr(record, 'task_run_name', '')}: {record.getMessage()}", ()
    return True


def redact_record(record: logging.LogRecord) -> bool:
    """Remove the secrets of URLs from a record and its traceback: handlers send both to the server's database."""
    message = record.getMessage()
    if (redacted := redact(message)) != message:
        record.msg, record.args = redacted, ()
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = redacted_traceback(record.exc_info[1])  # formatters use it unchanged
    return True


def install() -> None:
    """Add the filters to Prefect's loggers and to `gpt2train`, and set the level of `gpt2train` to INFO if unset."""
    logging.getLogger("prefect.task_runs").addFilter(drop_plain_end)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(drop_expected_traceback)  # adding a filter twice has no effect
    for name in (*LOGGERS, "gpt2train"):
        logging.getLogger(name).addFilter(redact_record)
    # A worker loads the flow after Prefect has configured logging: `gpt2train` has a handler and no level, so the
    # root's level, WARNING, would suppress the lines of the steps and of the ranks.
    logger = logging.getLogger("gpt2train")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
