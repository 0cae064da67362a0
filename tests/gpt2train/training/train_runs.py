"""Program for torchrun: trains the given runs one after the other in one process group.

train_runs.py RUN.toml…
"""

import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.train import train

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
for path in sys.argv[1:]:
    train(read_run_config(Path(path)), ctx)
dist.destroy_process_group()
