"""Ranks on this machine without torchrun, forked from a process that has imported torch and the engine.

Importing them takes 3 s of a core for each rank, and the launcher takes 2 s. Tests of the numbers on several processes
need neither; tests of the job itself start one with `jobs.start`.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

from gpt2train.launch.process_env import STORE
from gpt2train.store.process import die_with_parent

SECONDS = 240.0  # for one job, on a busy machine
# The server ends with the process that runs the tests, and the ranks with the server.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["gpt2train.train", "tests.gpt2train.jobs"])


def run_ranks(program: Path, *arguments: str, processes: int = 2, seconds: float = SECONDS) -> None:
    """Run a Python program on several ranks, and fail with what they print if one of them fails.

    Args:
        program: Path of the program, which joins its process group by the environment as under torchrun.
        arguments: Its arguments.
        processes: World size.
        seconds: Time limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = [
            SERVER.Process(target=_run_rank, args=(rank, processes, folder, str(program), arguments), daemon=True)
            for rank in range(processes)
        ]
        for process in job:
            process.start()
        try:
            end = time.monotonic() + seconds
            while running := [process for process in job if process.exitcode is None]:
                wait([process.sentinel for process in running], timeout=max(0.0, end - time.monotonic()))
                if time.monotonic() >= end or any(process.exitcode for process in job):
                    break
        finally:
            for process in job:
                process.kill()
        printed = "".join(path.read_text(errors="replace") for path in sorted(Path(folder).glob("*.log")))
        assert [process.exitcode for process in job] == [0] * processes, printed


def _run_rank(rank: int, world: int, folder: str, program: str, arguments: tuple[str, ...]) -> None:
    die_with_parent()
    output = os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ[STORE] = folder
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
