"""Program for torchrun: trains runs to step 9, then on with a defect; each must refuse to save.

    diverging_runs.py RUN.toml…

The name of a run ends in its defect, on rank 1 alone: -weight, -moment.
"""

import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.errors import RunError
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.grad_norm import local
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.engine import Engine, PendingStats

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
original = Engine.update


def corrupt(what: str) -> None:
    """Make the next runs corrupt a weight, or a second moment, of rank 1 in their second step."""
    steps = [0]

    def update(engine: Engine, measure: PendingStats, lr: float, skip: bool = False) -> None:
        original(engine, measure, lr, skip)
        steps[0] += 1
        if steps[0] == 2 and ctx.rank == 1:
            state = engine.state() if engine.shared is None else engine.optimizer.state()
            names = [name for name in state if name.endswith({"weight": "ln_1.weight", "moment": "exp_avg_sq"}[what])]
            local(state[names[-1]] if names else engine.parameters()[0]).detach().fill_(float("inf"))

    Engine.update = update  # type: ignore[method-assign, assignment]


for path in sys.argv[1:]:
    config, name = read_run_config(path), Path(path).stem
    Engine.update = original  # type: ignore[method-assign]
    train(config, ctx)
    corrupt(name.rpartition("-")[2])
    try:
        train(config.model_copy(update={"steps": 13}), ctx)
    except RunError as error:
        if ctx.is_rank0:
            print(f"{name}: not saved: {error}", flush=True)
dist.destroy_process_group()
exit_without_teardown(0)
