"""Evaluation by one process, or by those of torchrun, which share the work and of which the first one speaks."""

import os
import sys
import time

import torch
import torch.distributed as dist
from cyclopts import App, CycloptsError

from gpt2train.cluster import find_seat
from gpt2train.command import explain_flags, fail, run_command
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import join
from gpt2train.rank import end_at_once_on_bugs, exit_code, follow_launcher, leave

# Seconds that the first process is given to tell an error that all of them met: the launcher ends all when one ends.
TELLING = 3.0

_shared = False


def group() -> dist.ProcessGroup | None:
    """The processes that share the work; None where there is one, or where one model lies on several."""
    return dist.group.WORLD if _shared else None


def is_first() -> bool:
    """Whether this process prints and writes."""
    return group() is None or dist.get_rank() == 0


def say(line: str) -> None:
    """Print a line, once."""
    if is_first():
        print(line, flush=True)


def run_shared(app: App) -> None:
    """Run the command line of this process and exit: alone, or with the others of a torchrun job.

    Each process has the whole model, on the GPU of its local number where there are GPUs.
    """
    try:
        seat = find_seat(os.environ)
    except UserError as error:
        sys.exit(fail(str(error), 2, debug=False))
    if seat.world == 1:
        sys.exit(run_command(app))
    follow_launcher()
    debug = "--debug" in sys.argv
    code = 0
    try:
        if gpus := torch.cuda.device_count():
            torch.cuda.set_device(seat.local % gpus)
        join("cpu", seat)  # answers travel by gloo, wherever the models are
        end_at_once_on_bugs(seat.rank, debug)
        global _shared
        _shared = True
        arguments = [flag for flag in sys.argv[1:] if flag != "--debug"]
        try:
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        except CycloptsError as error:
            raise UserError(explain_flags(error)) from error
    except (UserError, RunError) as error:
        code = exit_code(error, seat, debug)
        if seat.rank:
            time.sleep(TELLING)
    leave(code)
