"""Evaluation in one process, or in the processes of torchrun, which share the work; rank 0 prints and writes."""

import os
import sys
import time

import torch
import torch.distributed as dist
from cyclopts import App, CycloptsError

from gpt2train.command_line import explain_flags, fail, run_command
from gpt2train.errors import RunError, UserError
from gpt2train.launch.process_env import read_process_env
from gpt2train.launch.rank_process import exit_code, exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join

# Seconds that the other ranks wait after an error, so that rank 0 can report it: the launcher stops all when one exits.
EXIT_DELAY_SECONDS = 3.0

_shared = False


def group() -> dist.ProcessGroup | None:
    """Return the processes that share the work; None for one process, or for a model distributed over several."""
    return dist.group.WORLD if _shared else None


def is_rank0() -> bool:
    """Return True if this process prints and writes."""
    return group() is None or dist.get_rank() == 0


def print_once(line: str) -> None:
    """Print a line on rank 0."""
    if is_rank0():
        print(line, flush=True)


def run_shared(app: App) -> None:
    """Run the command line and exit, alone or as one rank of a torchrun job.

    Each rank has the whole model, on the GPU of its local rank if there are GPUs.
    """
    try:
        env = read_process_env(os.environ)
    except UserError as error:
        sys.exit(fail(str(error), 2, debug=False))
    if env.world == 1:
        sys.exit(run_command(app))
    follow_launcher()
    debug = "--debug" in sys.argv
    code = 0
    try:
        if gpus := torch.cuda.device_count():
            torch.cuda.set_device(env.local_rank % gpus)
        join("cpu", env)  # scores are exchanged over gloo, wherever the models are
        install_excepthook(env.rank, debug)
        global _shared
        _shared = True
        arguments = [flag for flag in sys.argv[1:] if flag != "--debug"]
        try:
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        except CycloptsError as error:
            raise UserError(explain_flags(error)) from error
    except (UserError, RunError) as error:
        code = exit_code(error, env, debug)
        if env.rank:
            time.sleep(EXIT_DELAY_SECONDS)
    exit_without_teardown(code)
