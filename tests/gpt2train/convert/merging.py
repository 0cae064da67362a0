"""Run by torchrun: of each run that it is given, what the trained model says on its own layout, before any merge.

    merging.py RUN.toml…

Leaves `RUN.logits`, the logits [1, context, vocab] of the trained model, and a checkpoint of the first weights, which
are the same on every layout, in `RUN-fresh/`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.checkpoint.resume import START
from gpt2train.checkpoint.saver import Checkpoints
from gpt2train.config import RunConfig, read_run_config, to_toml
from gpt2train.engine import Engine
from gpt2train.parallel.fsdp import reshard
from gpt2train.parallel.mesh import Place, join
from gpt2train.rank import end_at_once_on_bugs, follow_launcher, leave
from gpt2train.train import train


@torch.no_grad()
def logits(engine: Engine, config: RunConfig, place: Place) -> Tensor | None:
    """The logits, on a process of the last stage; hidden states go from stage to stage by hand."""
    tokens = torch.arange(config.model.context).view(1, -1) % config.vocab
    layout, (part,) = engine.layout, engine.parts
    stride = layout.world // layout.pp
    part.eval()
    part.__dict__.pop("forward", None)  # a pipeline's own, which asks for a loss
    if part.begins:
        x = tokens
    else:
        length = config.model.context // (layout.tp if config.parallel.sequence_parallel else 1)
        x = torch.empty(1, length, config.model.hidden)
        dist.recv(x, place.rank - stride)
    y = part(x)
    reshard(engine.parts)
    if not part.ends:
        dist.send(y.contiguous(), place.rank + stride)
        return None
    return y[..., : config.vocab]


def main(path: str, place: Place) -> None:
    config = read_run_config(path)
    fresh = config.model_copy(update={"output": f"{config.output}-fresh"})
    train(config, place)
    if place.is_first:
        for one in (config, fresh):
            Path(one.output).mkdir(exist_ok=True)
            (Path(one.output) / "config.toml").write_text(to_toml(one))
    with Checkpoints(fresh) as checkpoints:
        engine = Engine(fresh, place)
        checkpoints.save(engine.state(), START)
    with Checkpoints(config) as checkpoints:
        checkpoints.restore(engine.state())
    found = logits(engine, config, place)
    if found is not None and place.rank == place.world - 1:
        torch.save(found.clone(), f"{config.output}.logits")


follow_launcher()
place = join("cpu")
end_at_once_on_bugs(place.rank, debug=True)
for path in sys.argv[1:]:
    main(path, place)
dist.destroy_process_group()
leave(0)
