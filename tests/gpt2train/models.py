"""Small models for the tests."""

import torch

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape


def lively(shape: Shape, seed: int = 3, noise: float = 0.3) -> GPT2:
    """An untrained model with larger weights, whose continuations are not one token over and over."""
    model = initialise(GPT2(shape), seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return model.requires_grad_(False).eval()
