"""Program for ranks: trains a run, of which rank 1 sleeps in each step, or whose batches come late.

slow_rank.py RUN.toml wait|data SECONDS
"""

import sys
import time
from typing import Any

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.data.training_data import TrainingData
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.engine import Engine

path, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
ctx = join("cpu")
if kind == "data":
    batches = TrainingData.training_batches

    def late(*arguments: Any, **keywords: Any) -> Any:
        for batch in batches(*arguments, **keywords):
            time.sleep(seconds)
            yield batch

    TrainingData.training_batches = late  # type: ignore[method-assign]
elif ctx.rank == 1:
    update = Engine.update

    def slow(*arguments: Any, **keywords: Any) -> None:
        update(*arguments, **keywords)
        time.sleep(seconds)

    Engine.update = slow  # type: ignore[method-assign]
train(read_run_config(path), ctx)
dist.destroy_process_group()
