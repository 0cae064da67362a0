"""Sampling of the next token from logits, with settings per row."""

import hashlib
import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256  # tokens, of which a vocabulary has about as many blocks


def sample(
    logits: Tensor, temperatures: Sequence[float], top_k: int, top_p: Sequence[float], uniforms: Sequence[float]
) -> list[int]:
    """Sample one token per row: the largest sum of log-probability and Gumbel noise, of a block and then in it.

    A row's token depends on that row's logits, settings and random number only. The logits differ by some 1e-6 with the
    size of the batch. That changes a token in a million here; where the cumulative distribution is inverted it moves
    each of 50,000 ends, and changed one in 300. Noise of all tokens at once takes 8 times as long.

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
    weights = restrict(scaled, top_k, top_p).double().exp()
    blocks = F.pad(weights, (0, -weights.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    noise = _gumbel(uniforms, blocks.shape[1] + BLOCK)
    chosen = (blocks.sum(2).log() + noise[:, BLOCK:]).argmax(1)
    inside = blocks[torch.arange(len(blocks)), chosen].log() + noise[:, :BLOCK]
    return (chosen * BLOCK + inside.argmax(1)).tolist()


def _gumbel(uniforms: Sequence[float], count: int) -> Tensor:
    """Gumbel noise [rows, count], float64, a function of each row's random number: SplitMix64 is its generator."""
    seeds = _mixed(torch.tensor([int(uniform * 2**53) for uniform in uniforms]))
    bits = _mixed(seeds[:, None] + torch.arange(1, count + 1) * -0x61C8864680B583EB)
    chances = ((bits >> 12) & (2**52 - 1)).double().add_(0.5).mul_(2.0**-52)  # neither 0 nor 1
    return chances.log_().neg_().log_().neg_()


def _mixed(words: Tensor) -> Tensor:
    """Output function of SplitMix64 (Steele et al. 2014), of int64; shifts are masked, since torch's keep the sign."""
    words = (words ^ ((words >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    words = (words ^ ((words >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    return words ^ ((words >> 31) & (2**33 - 1))


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
