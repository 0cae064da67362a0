"""Entry point of a `gpt2train` command whose model is distributed; torchrun starts every process with the same line.

    torchrun --nproc-per-node 4 -m gpt2train.inference serve --model DIR --tp 2 --pp 2
    python -m gpt2train.launch -- --nproc-per-node 4 -m gpt2train.inference serve --model DIR --tp 2 --pp 2

The second form names a lost process and leaves no process behind. `gpt2train serve --tp 2 --pp 2` uses it.
"""

import os
import sys

from gpt2train.errors import RunError, UserError
from gpt2train.launch.exit_codes import LOST_CONTACT
from gpt2train.launch.process_env import likely_rank, read_process_env
from gpt2train.launch.rank_process import exit_code, exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.store.process import prepare_streams

INTERRUPTED = 130


def main() -> None:
    """Run the command line on rank 0; run the model's shards on the other ranks."""
    prepare_streams("stderr")
    follow_launcher()
    debug = "--debug" in sys.argv
    rank = likely_rank(os.environ)
    if rank == 0:
        exit_without_teardown(_run_rank_0())
    install_excepthook(rank, debug)
    code = 0
    from gpt2train.inference.distributed_job import follow_rank_0  # imports torch (1-2 s); after the error handler

    try:
        follow_rank_0()
    except (UserError, RunError) as error:
        code = exit_code(error, read_process_env(os.environ), debug)
    exit_without_teardown(code)


def _run_rank_0() -> int:
    """Run the command on rank 0 and return its exit code, from which the launcher finds the first failure."""
    from gpt2train.cli import app  # here: the other ranks need no command line
    from gpt2train.command_line import fail, run_command

    code = run_command(app)
    job = sys.modules.get("gpt2train.inference.distributed_job")  # a command on one process does not load it
    model = job.led_model() if job else None
    if model is None and code == 0:
        return fail("several processes were started for a command that uses one; give it --tp and --pp", 2, False)
    if model is not None and model.lost:
        return LOST_CONTACT  # the cause is the end of the lost process; the launcher reports that
    return 1 if code == INTERRUPTED else code


if __name__ == "__main__":
    main()
