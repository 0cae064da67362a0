"""Slurm's commands: one function a question. They read `SLURM_CONF` and `SBATCH_…` as a person's would."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpt2train.errors import TransientError, UserError

ANSWER_SECONDS = 120.0  # the commands themselves give up after some 60 s of a silent controller
SILENT = ("Unable to contact slurm controller", "timed out", "Connection refused", "Zero Bytes were transmitted")

OUT_OF_MEMORY = "OUT_OF_MEMORY"
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", OUT_OF_MEMORY, "PREEMPTED", "REVOKED", "TIMEOUT"),
)
FORGOTTEN = "FORGOTTEN"  # ours: the controller keeps a job for some minutes, the accounting need not be there


@dataclass(frozen=True)
class State:
    """What Slurm says of a job.

    Attributes:
        name: PENDING, RUNNING, COMPLETED …, or FORGOTTEN.
        reason: why it waits or ended, a word of Slurm's.
        code: exit code of the script, or minus the signal that ended it.
        restarts: how often Slurm put it back into the queue.
        nodes: where it runs.
        command: path of its script.
    """

    name: str
    reason: str = ""
    code: int = 0
    restarts: int = 0
    nodes: str = ""
    command: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing of it runs or waits any more."""
        return self.name in (*ENDED, FORGOTTEN)


def need_slurm() -> None:
    """Look whether Slurm's commands are here.

    Raises:
        UserError: they are not.
    """
    if missing := [name for name in ("sbatch", "scontrol", "squeue", "scancel") if shutil.which(name) is None]:
        raise UserError(
            f'launch.launcher is "slurm", but there is no {missing[0]} on this machine; start it on a login node of '
            'the cluster, or take launch.launcher "torchrun"'
        )


def submit(script: Path) -> int:
    """Submit a script; the number of the job.

    Raises:
        UserError: sbatch refuses it; the message has its words.
        TransientError: the controller does not answer.
    """
    done = _call("sbatch", "--parsable", str(script), env=_environment(os.environ))
    if done is None:
        raise TransientError("Slurm's controller does not answer sbatch; run again when sinfo answers")
    if done.returncode:
        raise UserError(f"sbatch refuses the job: {_words(done.stderr)}; change launch.slurm (see sinfo), or {script}")
    return int(done.stdout.strip().partition(";")[0])


def look(number: int) -> State | None:
    """The state of a job; None where the controller does not answer just now."""
    done = _call("scontrol", "--oneliner", "show", "job", str(number))
    if done is None:
        return None
    if done.returncode == 0:
        return read_state(done.stdout)
    return _recorded(number)


def read_state(line: str) -> State:
    """The state in a line of `scontrol --oneliner show job`."""
    code = _exit_code(_value(line, "ExitCode"))
    nodes = _value(line, "NodeList").replace("(null)", "")
    restarts = int(_value(line, "Restarts") or 0)
    # A path may have spaces in it.
    command = re.search(r"\bCommand=(.*?) WorkDir=", line)
    reason = _value(line, "Reason")
    reason = "" if reason == "None" else reason
    return State(_value(line, "JobState"), reason, code, restarts, nodes, command[1] if command else "")


def find(script: Path) -> int | None:
    """The newest job of mine, running or waiting, that was submitted from this script."""
    done = _call("squeue", "--me", "--noheader", "--format=%A %o")
    lines = done.stdout.splitlines() if done is not None and done.returncode == 0 else []
    found = [line.strip().partition(" ") for line in lines]
    return max((int(number) for number, _, command in found if is_script(command, script)), default=None)


def is_script(command: str, script: Path) -> bool:
    """Whether a job's command is this script, by whatever path it was submitted."""
    return bool(command) and Path(command).resolve() == script.resolve()


def ask_to_save(number: int) -> None:
    """SIGTERM to the processes of a job, not to its script: the engine saves and ends."""
    _call("scancel", "--signal=TERM", str(number))


def end(number: int) -> None:
    """Take a job out of the queue, or end what runs of it."""
    _call("scancel", str(number))


def machines() -> set[str]:
    """Names of the machines on which jobs can run, without domains; empty where Slurm does not say."""
    done = _call("sinfo", "--noheader", "--Node", "--format=%n")
    names = done.stdout.split() if done is not None and done.returncode == 0 else []
    return {name.partition(".")[0] for name in names}


def _recorded(number: int) -> State:
    """The state of a job that the controller has forgotten, from the accounting where there is one."""
    done = _call(
        "sacct", "--jobs", str(number), "--allocations", "--noheader", "--parsable2", "--format=State,ExitCode"
    )
    found = re.match(r"(\w+)[^|]*\|(\d+:\d+)", done.stdout) if done is not None and done.returncode == 0 else None
    return State(found[1], code=_exit_code(found[2])) if found else State(FORGOTTEN)


def _call(*command: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str] | None":
    """Run one of Slurm's commands; None where the controller does not answer."""
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            start_new_session=True,  # Ctrl-C is for us, who then end the job by the next of these
        )
    except subprocess.TimeoutExpired:
        return None
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "")
    silent = done.returncode and any(word in done.stderr for word in SILENT)
    return None if silent else done


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What a job inherits: Slurm keeps it on its own disk.

    Not Prefect's variables, an API key among them; and nothing of an allocation in which we run ourselves, whose task
    counts would contradict the job's.
    """
    keep = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in ours.items()
        if not name.startswith(("PREFECT_", "SLURM_", "SLURMD_")) or name in keep
    }


def _words(stderr: str) -> str:
    """What sbatch said, in one line without its name."""
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in stderr.splitlines()]
    return " ".join(dict.fromkeys(line for line in lines if line)) or "it does not say why"


def _exit_code(text: str) -> int:
    code, _, number = text.partition(":")
    return -int(number) if number.isdecimal() and int(number) else int(code or 0)


def _value(line: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){name}=(\S*)", line)
    return found[1] if found else ""
