"""Following a job of Slurm's: what it prints and what Slurm says of it is told, until nothing of it is left."""

import time
from collections.abc import Callable
from dataclasses import replace

from gpt2train.errors import UserError
from tasks.launch.job import Job
from tasks.launch.slurm import controller
from tasks.launch.slurm.controller import OUT_OF_MEMORY, State
from tasks.launch.slurm.output import Output
from tasks.launch.slurm.script import output_of

Tell = Callable[[str], None]

LOOK_SECONDS = 1.0  # between two looks at the output
STOPPED_EARLY = 128 + 15  # exit code of a job that SIGTERM met before its ranks could save
# Reasons that no waiting changes, words of Slurm's.
NEVER = ("PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")


def follow(job: Job, number: int, fresh: bool, tell: Tell) -> State:
    """Follow a job until nothing of it runs or waits; what it prints and what Slurm says of it is told.

    Raises:
        UserError: it asks for what Slurm never gives.
    """
    output = Output(output_of(job, number), fresh)
    told = ""
    while True:
        state = controller.look(number)
        if state is not None and state.name == "PENDING" and state.reason in NEVER:
            controller.end(number)
            raise UserError(f"Slurm would never start job {number}: {state.reason}; change launch.slurm (see sinfo)")
        saying = _saying(number, state)
        if saying and saying != told:
            tell(saying)
            told = saying
        over = state is not None and state.over
        asked = time.monotonic()
        while True:
            for line in output.lines(last=over):
                tell(line)
            left = asked + job.settings.slurm.poll - time.monotonic()
            if over or left <= 0:
                break
            time.sleep(min(LOOK_SECONDS, left))
        if state is not None and over:
            if state.code and output.short_of_memory:
                return replace(state, name=OUT_OF_MEMORY)
            if state.code > 0 and state.code != STOPPED_EARLY and output.cause:
                tell(f"error: {output.cause}")
            return state


def wait(number: int, seconds: float, output: Output, tell: Tell, asked: bool) -> bool:
    """Wait until a job is over, for a time; whether it is. `asked`: it is told to save as soon as it runs."""
    deadline = time.monotonic() + seconds
    signalled = False
    while time.monotonic() < deadline:
        state = controller.look(number)
        for line in output.lines():
            tell(line)
        if state is not None:
            if state.over:
                return True
            if asked and state.name == "PENDING":
                return False  # has nothing to save
            if asked and state.name == "RUNNING" and not signalled:
                controller.ask_to_save(number)
                signalled = True
        time.sleep(LOOK_SECONDS)
    return False


def _saying(number: int, state: State | None) -> str:
    """A line for a state that is worth one; empty for what passes by itself."""
    if state is None:
        return f"Slurm's controller does not answer; job {number} goes on without it, asking again"
    again = f", put back into the queue {state.restarts} times" if state.restarts else ""
    if state.name == "PENDING":
        hint = f"; scontrol release {number} lets it go" if state.reason.startswith("JobHeld") else ""
        return f"Slurm job {number} waits: {state.reason or 'its turn'}{again}{hint}"
    if state.name in ("RUNNING", "SUSPENDED", "STOPPED"):
        doing = "runs on" if state.name == "RUNNING" else "is suspended on"
        return f"Slurm job {number} {doing} {state.nodes}{again}"
    return ""
