"""Entry point under torchrun: `torchrun --nproc-per-node 4 -m gpt2train.evaluate lambada --model M --data F`."""

import os
import sys
import time

import torch
from cyclopts import CycloptsError

from gpt2train.cli import app
from gpt2train.command_line import explain_flags, fail, run_command
from gpt2train.errors import RunError, UserError
from gpt2train.evaluate.torchrun import join_group
from gpt2train.launch.process_env import read_process_env
from gpt2train.launch.rank_process import exit_code, exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.store.process import prepare_streams

# Seconds that the other ranks wait after an error, so that rank 0 can report it: the launcher stops all when one exits.
EXIT_DELAY_SECONDS = 3.0


def main() -> None:
    """Run the command line and exit, alone or as one rank of a torchrun job.

    Each rank has the whole model, on the GPU of its local rank if there are GPUs.
    """
    prepare_streams("stderr")
    sys.argv.insert(1, "evaluate")
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
        join_group(env)
        install_excepthook(env.rank, debug)
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


if __name__ == "__main__":
    main()
