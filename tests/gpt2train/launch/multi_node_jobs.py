"""Jobs of several machines, simulated by several launchers on one machine."""

import os
import subprocess
import sys
from pathlib import Path

from tests.gpt2train.jobs import finish

RANKS = Path(__file__).parent.parent / "parity" / "train_runs.py"


def start_machines(arguments: list[list[str]], *job: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gpt2train.launch", "--parent", str(os.getpid()), "--"]
    return [start_process([*command, *own, *job]) for own in arguments]


def start_process(command: list[str], **variables: str) -> subprocess.Popen[str]:
    """Start a process with variables of its own and none of another launcher's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env |= {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def rendezvous_arguments(port: int, processes: int, restarts: int = 0) -> list[str]:
    """torchrun's arguments for one of two machines that meet at a port of this one."""
    return [
        *("--nnodes", "2", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        *("--local-addr", "127.0.0.1"),
    ]


def finish_all(jobs: list[subprocess.Popen[str]], seconds: float = 240.0) -> list[tuple[int, str, str]]:
    try:
        return [finish(job, seconds) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
