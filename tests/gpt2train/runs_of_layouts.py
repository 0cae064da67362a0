"""Program for torchrun: trains the given runs one after the other in one process group; checks first weights.

runs_of_layouts.py RUN.toml…
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.config import RunConfig, read_run_config
from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.engine import Engine


def check_first_values(config: RunConfig) -> None:
    """A sharded model starts from the very bits of a plain one."""
    engine = Engine(config, ctx)
    plain = dict(initialise(GPT2(config.shape), config.seed).named_parameters())
    for name, parameter in engine.model_parts[0].named_parameters():
        local = parameter.to_local().numel()
        sharded = engine.layout.shard > 1 and parameter.shape[0] > 1
        assert local < parameter.numel() if sharded else local == parameter.numel(), name
        assert torch.equal(parameter.full_tensor(), plain[name]), name


follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
for path in sys.argv[1:]:
    settings = read_run_config(Path(path))
    if settings.parallel.tp == settings.parallel.pp == 1:
        check_first_values(settings)
    train(settings, ctx)
dist.destroy_process_group()
