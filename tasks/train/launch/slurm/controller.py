"""Wrappers of Slurm's commands, one function per query. The commands read `SLURM_CONF` and `SBATCH_…` as usual."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpt2train.errors import TransientError, UserError

COMMAND_TIMEOUT_SECONDS = 120.0  # the commands themselves give up after about 60 s without an answer
NO_ANSWER = ("Unable to contact slurm controller", "timed out", "Connection refused", "Zero Bytes were transmitted")

OUT_OF_MEMORY = "OUT_OF_MEMORY"
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", OUT_OF_MEMORY, "PREEMPTED", "REVOKED", "TIMEOUT"),
)
FORGOTTEN = "FORGOTTEN"  # not Slurm's: the controller purges jobs after some minutes, and accounting may be off


@dataclass(frozen=True)
class State:
    """State of a Slurm job."""

    name: str  # PENDING, RUNNING, COMPLETED …, or FORGOTTEN
    reason: str = ""  # Slurm's reason code for a job that waits or ended
    code: int = 0  # Exit code of the script, or minus the signal that ended it
    restarts: int = 0  # Number of times that Slurm requeued the job
    nodes: str = ""  # Nodes on which it runs
    command: str = ""  # Path of its script

    @property
    def ended(self) -> bool:
        """True if the job neither runs nor waits any more."""
        return self.name in (*ENDED, FORGOTTEN)


def check_commands() -> None:
    """Check that Slurm's commands are installed.

    Raises:
        UserError: A command is missing.
    """
    if missing := [name for name in ("sbatch", "scontrol", "squeue", "scancel") if shutil.which(name) is None]:
        remedy = 'start it on a login node of the cluster, or set launch.launcher to "torchrun"'
        raise UserError(f'launch.launcher is "slurm", but there is no {missing[0]} on this machine; {remedy}')


def submit(script: Path) -> int:
    """Submit a script and return the job id.

    Raises:
        UserError: sbatch rejects it; the message has its output.
        TransientError: The controller does not answer.
    """
    done = _call("sbatch", "--parsable", str(script), env=_environment(os.environ))
    if done is None:
        raise TransientError("Slurm's controller does not answer sbatch; run again when sinfo answers")
    if done.returncode:
        raise UserError(
            f"sbatch refuses the job: {_one_line(done.stderr)}; change launch.slurm (see sinfo), or {script}"
        )
    return int(done.stdout.strip().partition(";")[0])


def query_state(number: int) -> State | None:
    """Return the state of a job, or None if the controller does not answer."""
    done = _call("scontrol", "--oneliner", "show", "job", str(number))
    if done is None:
        return None
    if done.returncode == 0:
        return read_state(done.stdout)
    return _accounted_state(number)


def read_state(line: str) -> State:
    """Parse a line of `scontrol --oneliner show job`."""
    command = re.search(r"\bCommand=(.*?) WorkDir=", line)  # the path may contain spaces
    return State(
        _value(line, "JobState"),
        reason=_value(line, "Reason") if _value(line, "Reason") != "None" else "",
        code=_exit_code(_value(line, "ExitCode")),
        restarts=int(_value(line, "Restarts") or 0),
        nodes=_value(line, "NodeList").replace("(null)", ""),
        command=command[1] if command else "",
    )


def find_job(script: Path) -> int | None:
    """Return the newest running or waiting job of this user that was submitted from this script, or None."""
    lines = _output("squeue", "--me", "--noheader", "--format=%A %o").splitlines()
    found = [line.strip().partition(" ") for line in lines]
    return max((int(number) for number, _, command in found if is_script(command, script)), default=None)


def is_script(command: str, script: Path) -> bool:
    """Return True if a job's command is this script, under any path."""
    return bool(command) and Path(command).resolve() == script.resolve()


def terminate(number: int) -> None:
    """Send SIGTERM to the processes of a job, not to its script: the engine saves and ends."""
    _call("scancel", "--signal=TERM", str(number))


def cancel(number: int) -> None:
    """Cancel a waiting or running job."""
    _call("scancel", str(number))


def node_names() -> set[str]:
    """Return the names of the cluster's nodes, without domains; empty if sinfo fails."""
    return {name.partition(".")[0] for name in _output("sinfo", "--noheader", "--Node", "--format=%n").split()}


def _accounted_state(number: int) -> State:
    """Return the state of a job that the controller has purged, from the accounting if there is one."""
    options = ("--allocations", "--noheader", "--parsable2", "--format=State,ExitCode")
    found = re.match(r"(\w+)[^|]*\|(\d+:\d+)", _output("sacct", "--jobs", str(number), *options))
    return State(found[1], code=_exit_code(found[2])) if found else State(FORGOTTEN)


def _call(*command: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str] | None":
    """Run one of Slurm's commands; None if the controller does not answer."""
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_SECONDS,
            start_new_session=True,  # Ctrl-C must not reach this command: the launcher cancels the job by the next one
        )
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "")
    unanswered = done.returncode and any(text in done.stderr for text in NO_ANSWER)
    return None if unanswered else done


def _output(*command: str) -> str:
    """Return the output of one of Slurm's commands; empty if it fails."""
    done = _call(*command)
    return done.stdout if done is not None and done.returncode == 0 else ""


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a job inherits, and that Slurm stores on its own disk.

    It excludes Prefect's variables, which include an API key, and those of an allocation in which this process itself
    runs, because their task counts would contradict the job's.
    """
    keep = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PREFECT_", "SLURM_", "SLURMD_")) or name in keep
    }


def _one_line(stderr: str) -> str:
    """Join the messages of sbatch into one line, without its prefix."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in stderr.splitlines()]
    return " ".join(dict.fromkeys(line for line in lines if line)) or "no reason given"


def _exit_code(text: str) -> int:
    code, _, number = text.partition(":")
    return -int(number) if number.isdecimal() and int(number) else int(code or 0)


def _value(line: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){name}=(\S*)", line)
    return found[1] if found else ""
