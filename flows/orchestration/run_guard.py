"""Watches of a flow run, which end it or report its end when nobody else would.

| watch | what it sees | what it does |
|---|---|---|
| `watched` | the run's state on the server, every 5 s; its terminal | SIGTERM, on which a training saves |
| `watch_worker` | the Prefect worker that started it, every second | the same, and SIGKILL after a grace period |
| crash reporter | a pipe from the process | reports the run, unless its end is known |
| `claim_output` | the id that the last run has left in the output | reports that run, if it was killed |

Cancelling a run in the UI sets its state to Cancelling; the worker that started it ends its process and sets Cancelled.
Suspending sets Suspended, and Prefect ends the process at its next task, for a training days later; resuming starts
another process in the same run. So a run ends itself:

| state that others have set | the run ends | its state then |
|---|---|---|
| Cancelling | at once; with a worker after `WORKER_CANCEL_SECONDS`, if that does not end it | Cancelled |
| Suspended | at once | Suspended, from which Resume continues it |
| Paused, or Suspended without a deployment | at once: nothing can resume it | Cancelled |
| Scheduled, Pending, another Running | at once: it was resumed or retried | left to the other process |
| Cancelled | at once | Cancelled |
| any other final one | not: it may come of an outage | |

Prefect's worker puts each run into a session of its own, so that `kill -9` of the worker leaves the run without anyone
to cancel it. A worker that is asked to stop (Ctrl-C, SIGTERM) kills its runs with SIGKILL and does not report them
[Prefect's issues 16746, 22528]; so does the kernel's OOM killer with both. So the crash reporter, a process of a few
MB, reads from a pipe. A run whose end the server knows writes `END_REPORTED` before it exits. When the pipe closes
without that, the reporter gives the worker time to report the run, and then does so itself. The end of a cancelled run
is the worker's to report as long as it lives: first it imports the flow, 10 s of CPU time, and then it sets Cancelled
whatever the state is, so that a run that was reported earlier and retried would be cancelled again.

What is killed together with its machine reports nothing. But an output folder has one run at a time
(`store/output_lock.py`): a run that holds the lock and finds the id of another knows that the other has ended.
"""

import atexit
import contextlib
import datetime
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import psutil
import rich.console
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, ObjectNotFound, Pause, PrefectException, TerminationSignal
from prefect.states import Cancelled, Crashed

from flows.compat.prefect import brief_client, disconnect
from flows.orchestration.server import check_reachable, configured_server, is_embedded
from gpt2train.errors import RunError, UserError
from gpt2train.launch.rank_logs import quietly
from gpt2train.store.folder import Folder
from gpt2train.store.process import LastChange, hangup_signals, signal_after
from gpt2train.store.run_folder import FLOW_RUN

log = logging.getLogger("gpt2train")

STATE_SECONDS = 5.0  # between two questions for the run's state
PROCESS_SECONDS = 1.0  # between two looks at a process
ANSWER_SECONDS = 20.0  # for the server's answer
AWAY_SECONDS = 60.0  # of failed questions, until a server counts as away: SQLite is busy now and then
WORKER_CANCEL_SECONDS = 60.0  # for a worker to end a cancelled run; Prefect's polls every 10 s, and kills after 30 s
WORKER_REPORT_SECONDS = 30.0  # for a worker that lives to report a run, with the exit code that only it knows
CANCELLING_SECONDS = 540.0  # the same for a cancelled run
SAVED_SECONDS = 15.0  # to report the end of a run to the server, in addition to the time for the checkpoint
EXIT_SECONDS = 5.0  # for the server's answer at the exit of the process
REPORT_SECONDS = 600.0  # for the crash reporter to reach the server
CANCELLED = "the run was cancelled; run again to resume"
HUNG_UP = "the terminal was closed (SIGHUP); run again to resume, in tmux, with nohup, or by a Prefect worker"
END_REPORTED = b"over"  # message: the flow process exits, and the server knows that the run ended
END_UNREPORTED = b"unheard"  # message: the flow process exits, and the server does not know that the run ended
# The crash reporter. Prefect (1-3 s, 100 MB) is imported when there is something to report. systemd sends the signals
# to all processes of a service.
CRASH_REPORTER = f"""
import signal, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if (message := sys.stdin.buffer.read()) != {END_REPORTED!r}:
    from flows.orchestration.run_guard import report_crash
    report_crash(message, *sys.argv[1:])
"""


class RunEndedError(RunError):
    """End of a run that others asked for, with the type of the state that it ends in."""

    def __init__(self, message: str, state: StateType) -> None:
        super().__init__(message)
        self.state = state


@contextlib.contextmanager
def watched(run: FlowRun, has_worker: bool) -> Iterator[None]:
    """End the run of this process when its state on the server, or its terminal, asks for it.

    Raises:
        RunEndedError: the run is to end in the state that the error has.
        Abort, Pause: Prefect's signals to leave the state of the run as it is.
    """
    watch = _Watch(run, has_worker)
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in hangup_signals() if in_main_thread}
    for number in handlers:
        signal.signal(number, lambda *_: watch.hang_up())
    threading.Thread(target=watch.poll, daemon=True).start()
    try:
        yield
    except TerminationSignal as error:
        if watch.end is None:
            raise
        raise watch.end from error
    finally:
        watch.ended.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Watch:
    """Watch of one run.

    Attributes:
        end: exception with which the run ends after the signal; None as long as nobody asked for it.
        ended: set when the work of the run has ended.
    """

    def __init__(self, run: FlowRun, has_worker: bool) -> None:
        self.run, self.has_worker = run, has_worker
        self.end: BaseException | None = None
        self.ended = threading.Event()

    def hang_up(self) -> None:
        """End the run whose terminal was closed; its output would only fail."""
        drop_output()
        self.stop(RunEndedError(HUNG_UP, StateType.CRASHED))

    def stop(self, end: BaseException) -> None:
        """End the run by SIGTERM, unless its work has ended."""
        if not self.ended.is_set() and self.end is None:
            self.end = end
            os.kill(os.getpid(), signal.SIGTERM)

    def poll(self) -> None:
        """Poll the state of the run until its work has ended, or until it is to end."""
        since: float | None = None
        silence, answers, reported = LastChange(), 0, -1
        while not self.ended.wait(STATE_SECONDS):
            try:
                with brief_client(ANSWER_SECONDS) as client:
                    state = client.read_flow_run(self.run.id).state
            except ObjectNotFound:  # deleted, or the server lost its database: its page is gone, not its work
                continue
            except Exception as error:  # noqa: BLE001 - whatever the server does must not end the run
                # The watch of the process reports the end of an embedded server.
                is_new = silence.age(answers) >= AWAY_SECONDS and reported != answers
                if is_new and not (self.ended.is_set() or is_embedded()):
                    reported = answers
                    log.warning("the Prefect server does not answer (%s); the run goes on without its page", error)
                continue
            answers += 1
            silence.age(answers)
            end = None if state is None else how_to_end(self.run, state, self.has_worker)
            if end is None:
                since = None
                continue
            since = since or time.monotonic()
            waits_for_worker = self.has_worker and state is not None and state.type == StateType.CANCELLING
            if not waits_for_worker or time.monotonic() - since >= WORKER_CANCEL_SECONDS:
                self.stop(end)
                with contextlib.suppress(Exception):  # last: a handler may fail on a broken pipe
                    log.warning("%s; this process saves its work and ends", str(end).partition(";")[0])
                return


def how_to_end(run: FlowRun, state: State[Any], has_worker: bool) -> BaseException | None:
    """Return the exception with which a run ends whose state others have set; None if it goes on.

    Args:
        run: the run as this process found it, in the state Running.
        state: its state on the server now.
        has_worker: a worker has started this process.
    """
    if state.type == StateType.PAUSED and run.deployment_id is not None and state.state_details.pause_reschedule:
        return Pause("the run was suspended", state=state)
    if state.type == StateType.CANCELLING and has_worker:
        return Abort("the run was cancelled")
    if state.type in (StateType.PAUSED, StateType.CANCELLING):
        return RunEndedError(CANCELLED, StateType.CANCELLED)
    if state.type == StateType.CANCELLED:
        return Abort("the run was cancelled")
    resumed = state.type == StateType.RUNNING and run.state is not None and state.id != run.state.id
    if resumed or state.type in (StateType.SCHEDULED, StateType.PENDING):
        return Abort("another process continues this run")
    return None


def await_server() -> None:
    """Wait for a server that is away to come back, and cut Prefect's client off from it after `AWAY_SECONDS`.

    The engine would try to report the end of the run for four minutes, without a word.
    """
    address = configured_server()
    if address is None or is_embedded():
        return
    ends_at = None
    while ends_at is None or time.monotonic() < ends_at:
        try:
            check_reachable(address)
            return
        except UserError as error:
            if ends_at is None:
                ends_at = time.monotonic() + AWAY_SECONDS
                reason = str(error).partition(";")[0]
                log.warning("%s; its return is waited for %.0f s, for the end of the run", reason, AWAY_SECONDS)
        time.sleep(PROCESS_SECONDS)
    disconnect()


def watch_worker(flow_run: FlowRun, grace: float) -> None:
    """End the flow run of this process when the worker that started it dies.

    A training has `grace` seconds to save a checkpoint.

    Raises:
        RunError: the worker is already gone.
    """
    watched = supervisors()
    if not watched:
        raise RunError("the worker that started this run is gone; start a worker, and run again")
    start_crash_reporter(flow_run, watched[-1])
    terminate_with(watched, grace + SAVED_SECONDS)


def terminate_with(watched: list[psutil.Process], seconds: float) -> None:
    """Send this process SIGTERM when one of the watched processes ends, and SIGKILL `seconds` later.

    Log lines in between must not end the process: its standard output is a pipe to the worker, and rich, which Prefect
    logs with, raises SystemExit on a broken pipe. The process would then not report how it ended.
    """
    rich.console.Console.on_broken_pipe = _on_broken_pipe  # type: ignore[assignment]  # also for existing consoles
    message = "the worker that started this run is gone; the run saves its state and ends"
    signal_after(lambda: _wait_for_end(watched), signal.SIGTERM, seconds, lambda: quietly(log.warning)(message))


def _on_broken_pipe(console: rich.console.Console) -> None:
    """Discard all further output of a console, and of everything else that writes to stdout and stderr."""
    console.quiet = True
    drop_output()


def drop_output() -> None:
    """Discard all further output of this process."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


def supervisors() -> list[psutil.Process]:
    """Return the processes from this one's parent up to its worker, the worker last; empty if this one is orphaned.

    Without a worker among the ancestors (`serve()`, a container of its own) it is the parent alone.
    """
    parents = psutil.Process().parents()
    for index, parent in enumerate(parents):
        if is_worker(parent):
            return parents[: index + 1]
    # A worker makes its child a session leader. A session leader whose parent is process 1 was reparented: an orphan.
    if os.getppid() == 1 and os.getsid(0) == os.getpid():
        return []
    return parents[:1]


def is_worker(process: psutil.Process) -> bool:
    """Return True if a process is `prefect worker start …`."""
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return False
    return any(pair == ("worker", "start") for pair in itertools.pairwise(arguments))


def _wait_for_end(watched: list[psutil.Process]) -> None:
    parent = os.getppid()
    while os.getppid() == parent and all(is_running(one.pid, one.create_time()) for one in watched):
        time.sleep(PROCESS_SECONDS)


def start_crash_reporter(run: FlowRun, worker: psutil.Process) -> None:
    """Start the crash reporter of this process.

    Args:
        run: the flow run of this process, in the state Running that belongs to it. A later one is that of another
            process, which has resumed or retried the run, and is not reported.
        worker: the worker process; while it lives it reports the run itself.
    """
    own = [str(run.id), str(run.run_count), str(run.state.id) if run.state else ""]
    process = f"process {os.getpid()} on {os.uname().nodename}"
    reporter = subprocess.Popen(
        [sys.executable, "-c", CRASH_REPORTER, process, *own, str(worker.pid), repr(worker.create_time())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # the inherited pipe to the worker breaks when the worker dies
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals to the flow's process group must not reach it
    )
    atexit.register(_stop_crash_reporter, reporter, *own)


def _stop_crash_reporter(reporter: "subprocess.Popen[bytes]", run: str, attempt: str, state: str) -> None:
    message = END_UNREPORTED
    with contextlib.suppress(Exception), brief_client(EXIT_SECONDS) as client:  # the server is down, or cannot answer
        if not _is_unreported(client.read_flow_run(run), attempt, state):  # type: ignore[arg-type]  # a str works
            message = END_REPORTED
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        reporter.communicate(message, timeout=PROCESS_SECONDS)


def _is_unreported(run: FlowRun, attempt: str, state: str) -> bool:
    """Return True if the server lists a run as running in this process: in this attempt and this state Running."""
    own = is_cancelling(run) or (run.state is not None and str(run.state.id) == state)
    return is_active(run) and own and run.run_count == int(attempt)


def report_crash(message: bytes, process: str, run: str, attempt: str, state: str, worker: str, since: str) -> None:
    """Report the run of a process that has ended, if neither the process nor its worker has done so.

    The arguments after the message are those of the command line in `start_crash_reporter`.
    """
    cause = f"{process} ended without reporting how" if message == END_UNREPORTED else f"{process} was killed"
    ended_at = time.monotonic()
    while time.monotonic() < ended_at + REPORT_SECONDS:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # retries while the server is down
            found = client.read_flow_run(run)  # type: ignore[arg-type]  # a str works in the URL
            if not _is_unreported(found, attempt, state):
                return
            grace = CANCELLING_SECONDS if is_cancelling(found) else WORKER_REPORT_SECONDS
            if time.monotonic() > ended_at + grace or not is_running(int(worker), float(since)):
                report_end(client, found, cause)
                return
        time.sleep(PROCESS_SECONDS)


def is_running(pid: int, since: float) -> bool:
    """Return True if a process runs, and is the one that was created at the time `since`, not a later one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
    return False


def claim_output(root: Folder, flow_run: UUID) -> None:
    """Write a flow run's id into the output, whose lock it holds, and report the previous one if it was killed."""
    previous = _holder(root)
    if previous.get("flow_run") not in (None, str(flow_run)):
        _report(previous)
    holder = {"flow_run": str(flow_run), "host": socket.gethostname(), "pid": os.getpid()}
    root.write_bytes(FLOW_RUN, json.dumps(holder).encode())


def is_claimed(root: Folder, flow_run: UUID) -> bool:
    """Return True if the last run in the output folder is this one, in a process that it had before."""
    return _holder(root).get("flow_run") == str(flow_run)


def _holder(root: Folder) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        found = json.loads(root.read_bytes(FLOW_RUN))
        return found if isinstance(found, dict) else {}
    return {}


def _report(holder: dict[str, Any]) -> None:
    """Report the end of a run that the server lists as running; a run of another server is ignored."""
    cause = f"process {holder.get('pid')} on {holder.get('host')} ended without reporting how"
    try:
        with brief_client(ANSWER_SECONDS) as client:
            run = client.read_flow_run(holder["flow_run"])  # a str works in the URL
            # The worker or the crash reporter of a run that was cancelled a moment ago reports it.
            age = (datetime.datetime.now(datetime.UTC) - run.state.timestamp).total_seconds() if run.state else 0.0
            if is_active(run) and not (is_cancelling(run) and age < CANCELLING_SECONDS):
                end = report_end(client, run, cause)
                log.warning("flow run %s is now %s: %s", run.name, end.lower(), cause)
    except ObjectNotFound:
        pass
    except (httpx.HTTPError, PrefectException, OSError, ValueError) as error:
        log.warning("could not check the previous flow run %s, which may have died: %s", holder["flow_run"], error)


def is_active(run: FlowRun) -> bool:
    """Return True if the server lists a run as Running or Cancelling."""
    return run.state is not None and run.state.type in (StateType.RUNNING, StateType.CANCELLING)


def is_cancelling(run: FlowRun) -> bool:
    """Return True if the server lists a run as Cancelling."""
    return run.state is not None and run.state.type == StateType.CANCELLING


def report_end(client: SyncPrefectClient, run: FlowRun, cause: str) -> str:
    """Set the final state of a dead run, Crashed or, if its cancellation was requested, Cancelled; return its name."""
    end: State[Any] = Crashed(message=f"{cause}; run again to resume")
    if is_cancelling(run):
        end = Cancelled(message="the run was cancelled, and its process has ended; run again to resume")
    client.set_flow_run_state(run.id, end, force=True)
    return str(end.name)
