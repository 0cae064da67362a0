"""Sampling of the next token from logits, with settings per row."""

import hashlib
import random
from collections.abc import Sequence

import torch
from torch import Tensor


def sample(
    logits: Tensor, temperatures: Sequence[float], top_k: int, top_p: Sequence[float], uniforms: Sequence[float]
) -> list[int]:
    """Sample one token per row by inverting the cumulative distribution, tokens ordered by id.

    A row's token depends on that row's logits, settings and random number only.

    Args:
        logits: logits [rows, vocab].
        temperatures: temperature of each row, above 0; the limit of a small one is the most likely token.
        top_k: number of most likely tokens to sample from; 0 for all.
        top_p: nucleus probability of each row.
        uniforms: random number of each row, uniform in [0, 1).
    """
    # Below 1e-38 the logits divided by it would be infinite, and their probabilities NaN: the largest is 0 at any
    # temperature, and the others become -inf. A divisor that float32 rounds to 0 would give 0 / 0.
    divisors = torch.tensor(temperatures, dtype=logits.dtype).clamp(min=torch.finfo(logits.dtype).tiny)
    scaled = (logits - logits.amax(1, keepdim=True)) / divisors[:, None]
    probabilities = restrict(scaled, top_k, top_p).double().softmax(1)
    ends = probabilities.cumsum(1)
    total = ends[:, -1:]
    targets = torch.tensor(uniforms, dtype=torch.float64)[:, None] * total
    # The product may round up to the total, past the last token.
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(ends, targets, right=True)[:, 0].tolist()


def restrict(logits: Tensor, top_k: int, top_p: Sequence[float]) -> Tensor:
    """Set logits [rows, vocab] outside the top k, then outside the nucleus of probability p, to -inf.

    The token at which the sum reaches the row's p stays in the nucleus (Holtzman et al. 2020), so that at least one
    token remains.
    """
    if 0 < top_k < logits.shape[1]:
        smallest = logits.topk(top_k, 1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if min(top_p) < 1:
        ranked, order = logits.sort(dim=1, descending=True, stable=True)
        shares = ranked.softmax(1)
        # A rounded sum can reach 1 early: rows with p = 1 keep all tokens, whatever the other rows' p.
        reach = torch.tensor([p if p < 1 else torch.inf for p in top_p], dtype=logits.dtype)[:, None]
        beyond = shares.cumsum(1) - shares >= reach
        beyond[:, 0] = False  # keeps one token if p decayed to 0
        beyond = torch.zeros_like(beyond).scatter(1, order, beyond)
        logits = logits.masked_fill(beyond, -torch.inf)
    return logits


def rng_for(seed: int, row: int, sample: int = 0) -> random.Random:
    """Random numbers of one continuation, given by the seed, the prompt's index and the sample's index."""
    digest = hashlib.blake2b(f"{seed}/{row}/{sample}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))
