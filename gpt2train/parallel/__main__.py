"""A command of `gpt2train` on a model over several processes; torchrun starts each of them with the same line.

    torchrun --nproc-per-node 4 -m gpt2train.parallel serve --model DIR --tp 2 --pp 2
    python -m gpt2train.launch -- --nproc-per-node 4 -m gpt2train.parallel serve --model DIR --tp 2 --pp 2

The second form names the process that was lost, and leaves none behind. `gpt2train serve --tp 2 --pp 2` takes it.
"""

import os
import sys

from gpt2train.cluster import find_seat, likely_rank
from gpt2train.errors import RunError, UserError
from gpt2train.lifeline import LOST_CONTACT
from gpt2train.rank import end_at_once_on_bugs, exit_code, follow_launcher, leave

INTERRUPTED = 130


def main() -> None:
    """Run the command line on the first process, and follow it on the others."""
    follow_launcher()
    debug = "--debug" in sys.argv
    rank = likely_rank(os.environ)
    if rank == 0:
        leave(_lead())
    end_at_once_on_bugs(rank, debug)
    code = 0
    from gpt2train.parallel.job import follow_first

    try:
        follow_first()
    except (UserError, RunError) as error:
        code = exit_code(error, find_seat(os.environ), debug)
    leave(code)


def _lead() -> int:
    """Run the command; its exit code, by which the launcher knows who failed first."""
    from gpt2train.cli import app
    from gpt2train.command import fail, run_command

    code = run_command(app)
    job = sys.modules.get("gpt2train.parallel.job")  # which a command of one process does not load
    team = job.led() if job else None
    if team is None and code == 0:
        return fail("this command needs one process, but more were started; give it --tp and --pp", 2, False)
    if team is not None and team.lost:
        return LOST_CONTACT  # what ended the lost process is the cause, and the launcher tells it
    return 1 if code == INTERRUPTED else code


if __name__ == "__main__":
    main()
