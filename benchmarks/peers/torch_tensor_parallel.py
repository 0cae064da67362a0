"""Tensor parallelism as torch offers it, on our model: `parallelize_module`, and its loss over a cut vocabulary."""

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.loss import IGNORE


def parallelize(model: GPT2, mesh: DeviceMesh) -> None:
    """Cut a model in place. Its logits are then a DTensor over the vocabulary."""
    plan = {"attn.qkv": ColwiseParallel(), "attn.proj": RowwiseParallel()}
    plan |= {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    parallelize_module(model, mesh, {"wte": RowwiseParallel(input_layouts=Replicate())})
    model.project = lambda x, weight: F.linear(DTensor.from_local(x, mesh, [Replicate()], run_check=False), weight)


def backward(model: GPT2, tokens: Tensor, targets: Tensor) -> None:
    """Forward and backward of the loss summed over the targets."""
    with loss_parallel():  # knows no other reduction than the mean
        mean = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        (mean * (targets != IGNORE).sum()).backward()
