"""Program for torchrun: trains the given runs one after the other in one process group.

    train_runs.py RUN.toml…

A run that is refused leaves its message in `RUN.error`, and the next one begins.
"""

import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.errors import RunError, UserError
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.train import train

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
for path in sys.argv[1:]:
    try:
        train(read_run_config(path), ctx)
    except (UserError, RunError) as error:
        if ctx.is_rank0:
            Path(path).with_suffix(".error").write_text(str(error))
dist.destroy_process_group()
exit_without_teardown(0)
