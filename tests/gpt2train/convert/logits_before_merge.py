"""Program for torchrun: trains each given run and saves its logits on its own layout.

    logits_before_merge.py RUN.toml…

Leaves `RUN.logits`, the logits [1, context, vocab] of the trained model, and a checkpoint of the first weights, which
are the same on every layout, in `RUN-fresh/`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.config import RunConfig, read_run_config, to_toml
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.fsdp import reshard
from gpt2train.parallel.mesh import DistContext, join
from gpt2train.train import train
from gpt2train.training.engine import Engine
from gpt2train.training.train_state import START


@torch.no_grad()
def logits(engine: Engine, config: RunConfig, ctx: DistContext) -> Tensor | None:
    """The logits, on a process of the last stage; hidden states go from stage to stage by hand."""
    tokens = torch.arange(config.model.context).view(1, -1) % config.vocab
    layout, (part,) = engine.layout, engine.model_parts
    stride = layout.world // layout.pp
    part.eval()
    part.__dict__.pop("forward", None)  # a pipeline's own, which asks for a loss
    if part.has_embeddings:
        x = tokens
    else:
        length = config.model.context // (layout.tp if config.parallel.sequence_parallel else 1)
        x = torch.empty(1, length, config.model.hidden)
        dist.recv(x, ctx.rank - stride)
    y = part(x)
    reshard(engine.model_parts)
    if not part.has_head:
        dist.send(y.contiguous(), ctx.rank + stride)
        return None
    return y[..., : config.vocab]


def main(path: str, ctx: DistContext) -> None:
    config = read_run_config(path)
    fresh = config.model_copy(update={"output": f"{config.output}-fresh"})
    train(config, ctx)
    if ctx.is_rank0:
        for one in (config, fresh):
            Path(one.output).mkdir(exist_ok=True)
            (Path(one.output) / "config.toml").write_text(to_toml(one))
    with CheckpointManager(fresh) as checkpoints:
        engine = Engine(fresh, ctx)
        checkpoints.save(engine.state(), START)
    with CheckpointManager(config) as checkpoints:
        checkpoints.restore(engine.state(), open_initial_weights)
    found = logits(engine, config, ctx)
    if found is not None and ctx.rank == ctx.world - 1:
        torch.save(found.clone(), f"{config.output}.logits")


follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
for path in sys.argv[1:]:
    main(path, ctx)
dist.destroy_process_group()
exit_without_teardown(0)
