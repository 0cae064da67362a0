"""`slurm.sh` in the run folder: what sbatch takes, written from the settings and readable."""

import shlex
import sys
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.files import write_whole
from tasks.launch.job import LOST, Job, rank_arguments

SCRIPT = "slurm.sh"

HEAD = """\
#!/bin/bash
# One training job of gpt2train. By hand: sbatch {script}
# It goes on from the last checkpoint of its run folder, however often it is submitted. What the ranks say is in
# logs/rank-N.log there, what Slurm and the launchers say in logs/slurm-%j.out.
{directives}

"""

SETUP = """\
# launch.slurm.setup
trap 'echo "error: launch.slurm.setup: exit code $? of: $BASH_COMMAND" >&2; exit 1' ERR
{lines}
trap - ERR

"""

START = """\
export OMP_NUM_THREADS={threads} PYTHONUNBUFFERED=1
# One launcher a machine: it starts the ranks there, passes SIGTERM on, and waits until they have saved.
exec srun --cpus-per-task={cpus} --kill-on-bad-exit=1 --mpi=none --input=none \\
    {command}
"""


def output_pattern(job: Job) -> Path:
    """Where a job's output goes; `%j` stands for its number."""
    return job.run.absolute() / "logs" / "slurm-%j.out"


def output_of(job: Job, number: int) -> Path:
    """The output file of a job."""
    pattern = output_pattern(job)
    return pattern.with_name(pattern.name.replace("%j", str(number)))


def write_script(job: Job) -> Path:
    """Write the script into the run folder and return its path.

    Raises:
        UserError: the run folder's name has what sbatch cannot take, or cannot be written.
    """
    path = job.run.absolute() / SCRIPT
    write_whole(path, script(job).encode())
    return path


def script(job: Job) -> str:
    """The script of a job."""
    how, slurm = job.settings, job.settings.slurm
    cpus = slurm.cpus or how.processes * how.threads
    command = [
        slurm.python or sys.executable,
        "-m",
        "gpt2train.launch",
        "--lost",
        str(LOST),
        "--",
        *rank_arguments(job),
    ]
    setup = SETUP.format(lines="\n".join(slurm.setup)) if slurm.setup else ""
    head = HEAD.format(script=shlex.quote(str(job.run.absolute() / SCRIPT)), directives="\n".join(_directives(job)))
    return head + setup + START.format(threads=how.threads, cpus=cpus, command=shlex.join(command))


def _directives(job: Job) -> list[str]:
    how, slurm = job.settings, job.settings.slurm
    asked: dict[str, object] = {
        "job-name": f"gpt2train-{job.run.name}",
        "nodes": how.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus or how.processes * how.threads,
        "gpus-per-node": slurm.gpus or None,
        "mem": slurm.memory,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time_limit,
        "signal": f"TERM@{slurm.save_before}",
    }
    lines = [f"#SBATCH --{name}={_word(str(value))}" for name, value in asked.items() if value is not None]
    lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
    folder, _, name = str(output_pattern(job)).rpartition("/")
    lines.append(f"#SBATCH --output={_word(folder.replace('%', '%%') + '/' + name)}")
    lines.append(f"#SBATCH --chdir={_word(str(Path.cwd()))}")
    return lines + [f"#SBATCH {option}" for option in slurm.options]


def _word(text: str) -> str:
    """A word of a #SBATCH line, in quotes where it needs them; sbatch knows no way to write a quote in quotes."""
    if any(letter in text for letter in "\"'\\") or not text.isprintable():
        raise UserError(f"sbatch cannot take the name {text!r}: it has a quote, a backslash or a line break; rename it")
    return f'"{text}"' if any(letter.isspace() or letter == "#" for letter in text) else text
