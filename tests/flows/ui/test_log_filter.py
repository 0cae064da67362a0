"""Log lines that Prefect's engine writes, as the run page lists them: without the names of their task runs."""

import logging

import pytest

from flows.ui import log_filter


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("Completed()", None),
        ("Cached(message='done before: fingerprint 0123')", None),
        ("Failed('no space left')", "dedup band-00003: Finished in state Failed('no space left')"),
        ("Crashed('Execution was aborted')", "dedup band-00003: Finished in state Crashed('Execution was aborted')"),
    ],
)
def test_only_ends_that_say_something_are_logged_with_the_name_of_their_task_run(state: str, line: str | None) -> None:
    log_filter.install()
    name, message, extra = "prefect.task_runs", f"Finished in state {state}", {"task_run_name": "dedup band-00003"}
    record = logging.getLogger(name).makeRecord(name, logging.INFO, "", 0, message, (), None, extra=extra)
    kept = logging.getLogger(name).filter(record)
    assert (record.getMessage() if kept else None) == line
    flow_run = logging.makeLogRecord({"name": "prefect.flow_runs", "msg": "Finished in state Completed()"})
    assert logging.getLogger("prefect.flow_runs").filter(flow_run)
