"""How the next token of many rows is drawn from logits, each row by its own settings."""

import hashlib
import random
from collections.abc import Sequence

import torch
from torch import Tensor


def draw(
    logits: Tensor, temperatures: Sequence[float], top_k: int, top_p: Sequence[float], chances: Sequence[float]
) -> list[int]:
    """The token of each row of logits [rows, vocab] that its chance (0 <= chance < 1) falls on.

    The tokens' probabilities lie side by side from 0 to 1, in the order of their ids; so a row's token depends on that
    row's logits, settings and chance alone.
    """
    scaled = logits / torch.tensor(temperatures, dtype=logits.dtype)[:, None]
    probabilities = restrict(scaled, top_k, top_p).double().softmax(1)
    ends = probabilities.cumsum(1)
    total = ends[:, -1:]
    at = torch.tensor(chances, dtype=torch.float64)[:, None] * total
    # The product may round up to the total, behind which there is no token.
    at = torch.minimum(at, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(ends, at, right=True)[:, 0].tolist()


def restrict(logits: Tensor, top_k: int, top_p: Sequence[float]) -> Tensor:
    """Logits [rows, vocab] with -inf for what is not drawn: first all but the k most likely, then the tail beyond p.

    The token that makes the sum reach the row's p stays in (Holtzman et al. 2020, nucleus sampling); so one always
    stays.
    """
    if 0 < top_k < logits.shape[1]:
        smallest = logits.topk(top_k, 1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if min(top_p) < 1:
        ranked, order = logits.sort(dim=1, descending=True, stable=True)
        shares = ranked.softmax(1)
        # A rounded sum can reach 1 early; a row with all its tokens keeps them whatever rows lie beside it.
        reach = torch.tensor([p if p < 1 else torch.inf for p in top_p], dtype=logits.dtype)[:, None]
        beyond = shares.cumsum(1) - shares >= reach
        beyond[:, 0] = False  # a p that decayed to nothing
        beyond = torch.zeros_like(beyond).scatter(1, order, beyond)
        logits = logits.masked_fill(beyond, -torch.inf)
    return logits


def stream_of(seed: int, row: int, sample: int = 0) -> random.Random:
    """The chances of one continuation: by the seed, its prompt's place in the list and which sample of it this is."""
    digest = hashlib.blake2b(f"{seed}/{row}/{sample}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))
