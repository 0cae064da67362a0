"""How the next token is drawn from logits."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt2train.generate.settings import SamplingSettings


def draw(logits: Tensor, settings: SamplingSettings, generators: Sequence[torch.Generator]) -> list[int]:
    """The next token of every row of logits [rows, vocab], each drawn from its own stream."""
    if settings.greedy:
        return logits.argmax(1).tolist()
    probabilities = restrict(logits / settings.temperature, settings.top_k, settings.top_p).softmax(1)
    return [
        int(torch.multinomial(row, 1, generator=generator))
        for row, generator in zip(probabilities, generators, strict=True)
    ]


def restrict(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits [rows, vocab] with -inf for what is not drawn: first all but the k most likely, then the tail beyond p.

    The token that makes the sum reach p stays in (Holtzman et al. 2020, nucleus sampling).
    """
    if 0 < top_k < logits.shape[1]:
        smallest = logits.topk(top_k, 1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p < 1:
        ranked, order = logits.sort(dim=1, descending=True, stable=True)
        before = ranked.softmax(1).cumsum(1) - ranked.softmax(1)
        beyond = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(beyond, -torch.inf)
    return logits


def generator_of(seed: int, row: int) -> torch.Generator:
    """The stream of draws of one prompt: by the seed and its place in the list."""
    digest = hashlib.blake2b(f"{seed}/{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
