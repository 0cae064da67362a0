"""Run by torchrun in test_train.py: trains the runs that it is given, one after the other, in one process group.

layouts.py RUN.toml…
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.config import RunConfig, read_run_config
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.parallel.fsdp import materialise, shard
from gpt2train.parallel.mesh import data_mesh, join
from gpt2train.rank import end_at_once_on_bugs, follow_launcher
from gpt2train.train import train


def check_first_values(config: RunConfig, zero: int) -> None:
    """A sharded model starts from the very bits of a plain one."""
    with torch.device("meta"):
        model = GPT2(config.shape)
    shard(model, data_mesh(place, zero), zero)
    materialise(model, place.device, config.seed)
    plain = dict(initialise(GPT2(config.shape), config.seed).named_parameters())
    for name, parameter in model.named_parameters():
        local = parameter.to_local().numel()
        assert local < parameter.numel() if zero and parameter.shape[0] > 1 else local == parameter.numel(), name
        assert torch.equal(parameter.full_tensor(), plain[name]), name


follow_launcher()
place = join("cpu")
end_at_once_on_bugs(place.rank, debug=True)
for path in sys.argv[1:]:
    settings = read_run_config(Path(path))
    check_first_values(settings, settings.parallel.zero)
    train(settings, place)
dist.destroy_process_group()
