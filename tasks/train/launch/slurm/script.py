"""Batch script `slurm.sh` in the run folder, generated from the settings."""

import shlex
import sys
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.store.files import write_atomic
from tasks.train.launch.job import LOST, Job, rank_arguments
from tasks.train.launch.slurm.settings import SlurmSettings

SCRIPT = "slurm.sh"

HEAD = """\
#!/bin/bash
# One training job of gpt2train. By hand: sbatch {script}
# It resumes from the last checkpoint of its run folder, however often it is submitted. The ranks log to
# logs/rank-N.log there, Slurm and the launchers to logs/slurm-%j.out.
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
# One launcher per node: it starts the ranks there, forwards SIGTERM, and waits until they have saved.
exec srun --cpus-per-task={cpus} --kill-on-bad-exit=1 --mpi=none --input=none \\
    {command}
"""


def output_pattern(job: Job) -> Path:
    """Return the path of a job's output with Slurm's placeholder `%j` for the job id."""
    return job.run.absolute() / "logs" / "slurm-%j.out"


def output_of(job: Job, number: int) -> Path:
    """Return the path of the output file of a Slurm job."""
    pattern = output_pattern(job)
    return pattern.with_name(pattern.name.replace("%j", str(number)))


def write_script(job: Job) -> Path:
    """Write the script into the run folder and return its path.

    Raises:
        UserError: sbatch cannot take the run folder's name, or the folder cannot be written.
    """
    path = job.run.absolute() / SCRIPT
    write_atomic(path, script(job).encode())
    return path


def script(job: Job) -> str:
    """Return the batch script of a job."""
    launch, slurm = job.settings, job.settings.group(SlurmSettings)
    cpus = slurm.cpus or launch.processes * launch.threads
    launcher = [slurm.python or sys.executable, "-m", "gpt2train.launch", "--lost", str(LOST), "--"]
    command = [*launcher, *rank_arguments(job)]
    setup = SETUP.format(lines="\n".join(slurm.setup)) if slurm.setup else ""
    head = HEAD.format(script=shlex.quote(str(job.run.absolute() / SCRIPT)), directives="\n".join(_directives(job)))
    return head + setup + START.format(threads=launch.threads, cpus=cpus, command=shlex.join(command))


def _directives(job: Job) -> list[str]:
    launch, slurm = job.settings, job.settings.group(SlurmSettings)
    options: dict[str, object] = {
        "job-name": f"gpt2train-{job.run.name}",
        "nodes": launch.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": slurm.cpus or launch.processes * launch.threads,
        "gpus-per-node": slurm.gpus or None,
        "mem": slurm.memory,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time_limit,
        "signal": f"TERM@{slurm.save_before}",
    }
    lines = [f"#SBATCH --{name}={_quote(str(value))}" for name, value in options.items() if value is not None]
    lines += ["#SBATCH --requeue", "#SBATCH --open-mode=append"]
    folder, _, name = str(output_pattern(job)).rpartition("/")
    lines.append(f"#SBATCH --output={_quote(folder.replace('%', '%%') + '/' + name)}")
    lines.append(f"#SBATCH --chdir={_quote(str(Path.cwd()))}")
    return lines + [f"#SBATCH {option}" for option in slurm.options]


def _quote(text: str) -> str:
    """Quote a value of a #SBATCH line if necessary; sbatch has no escape for a quote within quotes."""
    if any(letter in text for letter in "\"'\\") or not text.isprintable():
        raise UserError(f"sbatch cannot take the name {text!r}: it has a quote, a backslash or a line break; rename it")
    return f'"{text}"' if any(letter.isspace() or letter == "#" for letter in text) else text
