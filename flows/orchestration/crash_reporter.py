"""Subprocess that reports a flow run as crashed when the flow process dies without the server knowing.

A Prefect process worker that is asked to stop (Ctrl-C, SIGTERM: systemd, a container) kills the flows it started with
SIGKILL and does not report them, so that their runs stay Running for ever [Prefect's issues 16746, 22528]. The same
happens when the kernel's OOM killer kills worker and flow, and when a run ends while the server is down or its disk is
full. So each flow that a worker started has a crash reporter: a process of a few MB that reads from a pipe. A flow
whose end the server knows writes `END_REPORTED` before it exits. When the pipe closes without that message, the crash
reporter gives the worker time to report the run, and then reports it itself.

The end of a cancelled run is the worker's to report as long as the worker lives. Before it does so it imports the flow,
10 s of CPU time, and it sets Cancelled whatever the state is by then: a run that was reported earlier and retried
would be cancelled again.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

END_REPORTED = b"over"  # message: the flow process exits, and the server knows that the run ended
END_UNREPORTED = b"unheard"  # message: the flow process exits, and the server does not know that the run ended
WORKER_SECONDS = 30.0  # for a worker that still runs to report the run, with the exit code that only it knows
REPORT_SECONDS = 600.0  # to reach the server
QUERY_SECONDS = 5.0
POLL_SECONDS = 1.0


def start_crash_reporter(run: "FlowRun", worker: psutil.Process) -> None:
    """Start the crash reporter of this process.

    Args:
        run: the flow run of this process, in the state Running that belongs to it. A later one is that of another
            process, which has resumed or retried the run, and is not reported.
        worker: the worker process; while it lives it reports the run itself.
    """
    state = str(run.state.id) if run.state else ""
    arguments = [str(run.id), str(run.run_count), state, str(worker.pid), repr(worker.create_time())]
    reporter = subprocess.Popen(
        [sys.executable, "-m", "flows.orchestration.crash_reporter", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # the inherited pipe to the worker breaks when the worker dies
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals to the flow's process group must not reach it
    )
    atexit.register(_stop_crash_reporter, reporter, *arguments[:3])


def _stop_crash_reporter(reporter: "subprocess.Popen[bytes]", run: str, attempt: str, state: str) -> None:
    message = END_REPORTED if _is_end_reported(run, attempt, state) else END_UNREPORTED
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        reporter.communicate(message, timeout=POLL_SECONDS)


def _is_end_reported(run: str, attempt: str, state: str) -> bool:
    from flows.compat.prefect import brief_client

    with contextlib.suppress(Exception), brief_client(QUERY_SECONDS) as client:
        return not _is_unreported(client.read_flow_run(run), attempt, state)  # type: ignore[arg-type]  # a str works
    return False  # the server is down, or cannot answer


def _is_unreported(run: "FlowRun", attempt: str, state: str) -> bool:
    """Return True if the server lists a run as running in this process: in this attempt and this state Running."""
    from flows.orchestration.stale_runs import is_active, is_cancelling

    own = is_cancelling(run) or (run.state is not None and str(run.state.id) == state)
    return is_active(run) and own and run.run_count == int(attempt)


def main(run: str, attempt: str, state: str, worker: str, since: str) -> None:
    """Wait until the flow process ends, and report the run if neither the flow nor the worker did.

    The arguments are those of `start_crash_reporter`; the worker is given as the id and creation time of its process.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # systemd sends them to all processes of a service
        signal.signal(number, signal.SIG_IGN)
    process = f"process {os.getppid()} on {os.uname().nodename}"
    message = sys.stdin.buffer.read()
    if message == END_REPORTED:
        return
    cause = f"{process} ended without reporting how" if message == END_UNREPORTED else f"{process} was killed"
    from prefect.client.orchestration import get_client  # here: the import takes 1 s, rarely needed

    from flows.orchestration.stale_runs import CANCELLING_SECONDS, is_cancelling, report_end

    ended_at = time.monotonic()
    while time.monotonic() < ended_at + REPORT_SECONDS:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # retries while the server is down
            found = client.read_flow_run(run)  # type: ignore[arg-type]  # a str works in the URL
            if not _is_unreported(found, attempt, state):
                return
            grace = CANCELLING_SECONDS if is_cancelling(found) else WORKER_SECONDS
            if time.monotonic() > ended_at + grace or not is_running(int(worker), float(since)):
                report_end(client, found, cause)
                return
        time.sleep(POLL_SECONDS)


def is_running(pid: int, since: float) -> bool:
    """Return True if a process runs, and is the one that was created at the time `since`, not a later one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
