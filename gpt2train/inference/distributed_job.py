"""Job of a command whose model is distributed over several processes.

    gpt2train generate --model DIR --prompt "…" --tp 2 --pp 2
    torchrun --nproc-per-node 4 -m gpt2train.inference generate --model DIR --prompt "…" --tp 2 --pp 2

The first line turns itself into the second one, under `gpt2train.launch`. Rank 0 runs the command. It sends the model's
path and layout to the other ranks, which load their shards and run them until rank 0 ends.
"""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.convert.huggingface import open_model, read_shape
from gpt2train.convert.settings import Device
from gpt2train.inference.distributed_decoder import CommandChannel, DistributedModel, follow
from gpt2train.inference.model_shard import ModelShard
from gpt2train.inference.settings import ServingLayout
from gpt2train.launch import rank_store
from gpt2train.launch.process_env import read_process_env
from gpt2train.model.device import choose_device
from gpt2train.model.families import check_language_model
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TIMEOUT, DistContext, all_or_raise, join

_model: DistributedModel | None = None


def led_model() -> DistributedModel | None:
    """Return the distributed model that this process drives as rank 0, if any."""
    return _model


@contextlib.contextmanager
def open_distributed_model(model: Path, serving: ServingLayout, device: Device = "auto") -> Iterator[DistributedModel]:
    """Open a model on all processes of the job; for rank 0.

    Args:
        model: Hugging Face model folder that every machine sees under this path.
        serving: layout of the model; its number of processes is that of the job.
        device: auto uses GPUs if each process can have its own.

    Raises:
        UserError: the layout does not fit the model or the job, the model does not exist, or `device` is cuda and there
            are too few GPUs.
        PeerLostError: inside the block, a process was lost.
    """
    env = read_process_env(os.environ)
    shape = read_shape(model)
    check_language_model(shape, model)
    layout = Layout.of_model(shape, serving.tp, serving.pp, env.world)
    choose_device(device, 1 if env.own_gpu else env.local_world, world=env.world, option="--device")
    dist_context = join("auto", env)
    on_gpu = dist_context.device.type == "cuda" and device != "cpu"
    setup = CommandChannel(TIMEOUT)
    setup.send(
        0, [list(os.fsencode(model.resolve())), [serving.tp, serving.pp, on_gpu, round(1000 * serving.peer_timeout)]]
    )
    shard, channel, timeout = _load_shard(dist_context, model, shape, layout, on_gpu, serving.peer_timeout)
    global _model
    _model = DistributedModel(shard, channel, timeout)
    try:
        yield _model
    finally:
        _model.close()
        if not _model.lost:
            _leave_group()


def follow_rank_0() -> None:
    """Load this rank's shard and execute the commands of rank 0 until it ends; for all other ranks.

    Raises:
        UserError: a rank could not load its shard.
        RunError: a rank could not load its shard.
    """
    env = read_process_env(os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 receives it too, finishes its work, and then stops this rank
    dist_context = join("auto", env)
    _, (path, (tp, pp, on_gpu, milliseconds)) = CommandChannel(TIMEOUT).receive()
    model = Path(os.fsdecode(bytes(path)))
    layout = Layout(pp, 1, 1, tp, 1, 1, 1)
    shard, channel, _ = _load_shard(dist_context, model, read_shape(model), layout, bool(on_gpu), milliseconds / 1000)
    follow(shard, channel)
    _leave_group()


def _load_shard(
    dist_context: DistContext, model: Path, shape: Shape, layout: Layout, on_gpu: bool, peer_timeout: float
) -> tuple[ModelShard, CommandChannel, timedelta]:
    timeout = timedelta(seconds=peer_timeout)
    device = dist_context.device if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)  # as in `read_model`
    shard = ModelShard(shape, layout, dataclasses.replace(dist_context, device=device, timeout=timeout))
    channel = CommandChannel(timeout)
    all_or_raise(lambda: shard.read(open_model(model)))
    return shard, channel, timeout


def _leave_group() -> None:
    dist.destroy_process_group()
    rank_store.leave()
