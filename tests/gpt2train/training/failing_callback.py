"""Program for ranks: trains a run with a callback that fails on rank 1 at step 3, and writes each rank's error.

failing_callback.py RUN.toml
"""

import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.config.callbacks import CALLBACKS, CallbackSpec
from gpt2train.errors import RunError
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.callbacks import Callback, RunView


class Failing(Callback):
    """Callback that fails on one rank."""

    def step(self, run: RunView) -> None:
        if run.rank == 1 and run.state.step == 3:
            raise KeyError("lost")


CALLBACKS.register("failing", CallbackSpec(f"{__name__}:Failing"))
ctx = join("cpu")
config = read_run_config(sys.argv[1]).model_copy(update={"callbacks": ("failing",)})
try:
    train(config, ctx)
except RunError as error:
    Path(f"{config.output}.rank-{ctx.rank}").write_text(str(error))
dist.destroy_process_group()
