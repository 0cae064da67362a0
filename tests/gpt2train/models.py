"""Small models for the tests, and their continuations as plain lists of tokens."""

from collections.abc import Sequence

import torch

from gpt2train.inference.decoder import OpenedModel
from gpt2train.inference.generate import BATCH, SamplingSettings, continue_tokens
from gpt2train.model.causal_lm import CausalLM, Shape, build_model
from gpt2train.model.init import initialise


def lively(shape: Shape, seed: int = 3, noise: float = 0.3) -> CausalLM:
    """An untrained model with larger weights, whose continuations are not one token over and over."""
    model = initialise(build_model(shape), seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return model.requires_grad_(False).eval()


def generate_tokens(
    model: OpenedModel,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    batch: int = BATCH,
) -> list[list[int]]:
    """Continue each prompt and return the new tokens; the last one is `end` if the model produced it."""
    return [sequence.tokens for sequence in continue_tokens(model, prompts, settings, end=end, batch=batch)]
