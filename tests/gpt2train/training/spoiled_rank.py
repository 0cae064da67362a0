"""Program for ranks: trains a run that one thing spoils.

    spoiled_rank.py RUN.toml wait|data|callback SECONDS

Rank 1 sleeps in each step; batches come late; or a callback fails on rank 1 at step 3, and each rank writes its error.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.config.callbacks import CALLBACKS, CallbackSpec
from gpt2train.data.training_data import TrainingData
from gpt2train.errors import RunError
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.callbacks import Callback, RunView
from gpt2train.training.engine import Engine


class Failing(Callback):
    def step(self, run: RunView) -> None:
        if run.rank == 1 and run.state.step == 3:
            raise KeyError("lost")


CALLBACKS.register("failing", CallbackSpec(f"{__name__}:Failing"))
kind, seconds = sys.argv[2], float(sys.argv[3])
ctx, config = join("cpu"), read_run_config(sys.argv[1])
batches, update = TrainingData.training_batches, Engine.update


def late(*arguments: Any, **keywords: Any) -> Any:
    for batch in batches(*arguments, **keywords):
        time.sleep(seconds)
        yield batch


def slow(*arguments: Any, **keywords: Any) -> None:
    update(*arguments, **keywords)
    time.sleep(seconds)


if kind == "data":
    TrainingData.training_batches = late  # type: ignore[method-assign]
elif kind == "wait" and ctx.rank == 1:
    Engine.update = slow  # type: ignore[method-assign]
elif kind == "callback":
    config = config.model_copy(update={"callbacks": ("failing",)})
try:
    train(config, ctx)
except RunError as error:
    Path(f"{config.output}.rank-{ctx.rank}").write_text(str(error))
dist.destroy_process_group()
