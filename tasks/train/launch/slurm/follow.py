"""Report of a Slurm job's output and state until it has ended."""

import time
from dataclasses import replace

from gpt2train.errors import UserError
from tasks.train.launch.job import Job, LogLineSink
from tasks.train.launch.slurm import controller
from tasks.train.launch.slurm.controller import OUT_OF_MEMORY, State
from tasks.train.launch.slurm.output import Output
from tasks.train.launch.slurm.script import output_of
from tasks.train.launch.slurm.settings import SlurmSettings

POLL_SECONDS = 1.0  # between two reads of the output
STOPPED_EARLY = 128 + 15  # exit code of a job that received SIGTERM before its ranks could save
# Slurm's reason codes of jobs that can never start.
NEVER = ("PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")


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
    again = f", requeued {state.restarts} times" if state.restarts else ""
    if state.name == "PENDING":
        hint = f"; scontrol release {number} lets it start" if state.reason.startswith("JobHeld") else ""
        return f"Slurm job {number} waits: {state.reason or 'no reason given'}{again}{hint}"
    if state.name in ("RUNNING", "SUSPENDED", "STOPPED"):
        doing = "runs on" if state.name == "RUNNING" else "is suspended on"
        return f"Slurm job {number} {doing} {state.nodes}{again}"
    return ""
