"""Report of a Slurm job's output and state until it has ended."""

import time
from dataclasses import replace
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.store.counts import count_of
from tasks.train.launch.job import LAST_LINES, Job, LogLineSink
from tasks.train.launch.slurm import controller
from tasks.train.launch.slurm.controller import OUT_OF_MEMORY, State
from tasks.train.launch.slurm.script import output_of
from tasks.train.launch.slurm.settings import SlurmSettings

POLL_SECONDS = 1.0  # between two reads of the output
STOPPED_EARLY = 128 + 15  # exit code of a job that received SIGTERM before its ranks could save
# Slurm's reason codes of jobs that can never start.
NEVER = ("PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")

LINE_BYTES = 200  # length of a typical line
# Messages of slurmstepd for kills by the accounting (OverMemoryKill) and by the kernel.
OOM_MESSAGES = ("exceeded memory limit", "exceeded job memory limit", "oom_kill event", "oom-kill event")


class Output:
    """Incremental reader of a file that another machine writes, and that need not exist yet.

    The file is reopened for each read, because a network file system guarantees new data only after an open. Unless it
    is `fresh`, it is read from its last lines on, since an earlier process has reported the others.
    """

    def __init__(self, path: Path, fresh: bool = True) -> None:
        self.path = path
        self._read = 0
        if not fresh and path.exists():
            self._read = max(0, path.stat().st_size - LAST_LINES * LINE_BYTES)
        self._at_line_start = self._read == 0
        self._engine_error = False  # the engine has printed an error
        self._slurm_errors: list[str] = []

    def lines(self, last: bool = False) -> list[str]:
        """Return the complete lines since the last call; with `last` also an unterminated one."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        if not self._at_line_start and whole:
            self._at_line_start, whole = True, whole.partition(b"\n")[2]  # drop the rest of a line
        return [self._classify(line) for line in whole.decode(errors="replace").splitlines()]

    @property
    def cause(self) -> str | None:
        """First error of Slurm itself, or None if the engine printed an error."""
        return self._slurm_errors[0] if self._slurm_errors and not self._engine_error else None

    @property
    def out_of_memory(self) -> bool:
        """True if Slurm reported in the output that the job exceeded its memory; the job's state may not show it."""
        return any(text in line.lower() for line in self._slurm_errors for text in OOM_MESSAGES)

    def _classify(self, line: str) -> str:
        """Record errors, and remove Slurm's `error: ` mark, which it puts on every message, also on normal ends."""
        source, found, rest = line.partition(": error: ")
        if not found or source.split("-")[0] not in ("srun", "slurmstepd"):
            self._engine_error = self._engine_error or line.startswith("error: ")
            return line
        if not rest.startswith("*** ") and "Exited with exit code" not in rest:
            self._slurm_errors.append(f"{source}: {rest}")
        return f"{source}: {rest}"


def follow(job: Job, number: int, fresh: bool, on_line: LogLineSink) -> State:
    """Report a Slurm job's output and state changes until it has ended, and return its last state.

    Unless it is `fresh`, submitted by this process, only the last lines of its old output are read.

    Raises:
        UserError: The job requests resources that Slurm can never grant.
    """
    output, poll = Output(output_of(job, number), fresh), job.settings.group(SlurmSettings).poll
    reported = ""
    while True:
        state = controller.query_state(number)
        if state is not None and state.name == "PENDING" and state.reason in NEVER:
            controller.cancel(number)
            raise UserError(f"Slurm would never start job {number}: {state.reason}; change launch.slurm (see sinfo)")
        message = _describe(number, state)
        if message and message != reported:
            on_line(message)
            reported = message
        ended = state is not None and state.ended
        queried = time.monotonic()
        while True:
            for line in output.lines(last=ended):
                on_line(line)
            left = queried + poll - time.monotonic()
            if ended or left <= 0:
                break
            time.sleep(min(POLL_SECONDS, left))
        if state is not None and ended:
            if state.code and output.out_of_memory:
                return replace(state, name=OUT_OF_MEMORY)
            if state.code > 0 and state.code != STOPPED_EARLY and output.cause:
                on_line(f"error: {output.cause}")
            return state


def wait(number: int, seconds: float, output: Output, on_line: LogLineSink, terminate: bool) -> bool:
    """Wait so many seconds until a Slurm job has ended; return True if it has.

    With `terminate`, the job gets SIGTERM once it runs; one that is still pending has nothing to save and is not waited
    for.
    """
    deadline = time.monotonic() + seconds
    signalled = False
    while time.monotonic() < deadline:
        state = controller.query_state(number)
        for line in output.lines():
            on_line(line)
        if state is not None:
            if state.ended:
                return True
            if terminate and state.name == "PENDING":
                return False
            if terminate and state.name == "RUNNING" and not signalled:
                controller.terminate(number)
                signalled = True
        time.sleep(POLL_SECONDS)
    return False


def _describe(number: int, state: State | None) -> str:
    """Return a message for a state, or an empty string for transitional states."""
    if state is None:
        return f"Slurm's controller does not answer; job {number} continues without it, asking again"
    again = f", requeued {count_of(state.restarts, 'time')}" if state.restarts else ""
    if state.name == "PENDING":
        hint = f"; scontrol release {number} lets it start" if state.reason.startswith("JobHeld") else ""
        return f"Slurm job {number} waits: {state.reason or 'no reason given'}{again}{hint}"
    if state.name in ("RUNNING", "SUSPENDED", "STOPPED"):
        doing = "runs on" if state.name == "RUNNING" else "is suspended on"
        return f"Slurm job {number} {doing} {state.nodes}{again}"
    return ""
