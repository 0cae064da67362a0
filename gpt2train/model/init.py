"""Initial values of the parameters, each drawn from its own seeded generator.

A tensor depends only on `(seed, name)`, not on the order of creation, so that every parallel layout starts from the
same bits. Scales as in GPT-2, unless the family has others: N(0, 0.02), the projections into the residual stream
divided by sqrt(2 * layers).
"""

import hashlib
import math
from typing import TypeVar

import torch
from torch import Tensor

from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS, is_residual
from gpt2train.model.shape import Shape

STD = 0.02

Model = TypeVar("Model", bound=CausalLM)


def initial_value(name: str, size: tuple[int, ...], shape: Shape, seed: int) -> Tensor:
    """Draw the initial value of the parameter `name`: float32, on the CPU, unsharded."""
    if name.endswith("bias"):
        return torch.zeros(size)
    if len(size) == 1:  # scale of a norm
        return torch.ones(size)
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    std = MODELS[shape.family].initial_std(name, shape)
    if std is None:
        std = STD / math.sqrt(2 * shape.layers) if is_residual(name, shape) else STD
    return torch.empty(size).normal_(0.0, std, generator=generator)


@torch.no_grad()
def initialise(model: Model, seed: int) -> Model:
    """Fill a single-process model with its initial values, in place."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(name, tuple(parameter.shape), model.shape, seed))
    return model
