"""Continue prompts: key-value cache, batches of unequal prompts, greedy or sampled.

Unequal prompts run in lock-step without any padding: all rows feed position t together, a row whose prompt reaches
beyond t feeds its prompt's token, the others what they generated. So every row sees exactly what it would see alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2, KeyValueCache
from gpt2train.sampling import SamplingSettings

BATCH = 8  # prompts that run together

Stop = Literal["end", "length", "context"]


@dataclass(frozen=True)
class Generation:
    """What a model made of a prompt; `stopped` at `<|endoftext|>`, at the length asked for, or at the context's end."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    stopped: Stop


def generate(
    model: GPT2,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: SamplingSettings | None = None,
    batch: int = BATCH,
) -> list[Generation]:
    """Continue every prompt. The answers depend on the prompts and settings, not on how they are batched.

    An empty prompt begins a new document. `<|endoftext|>` ends a continuation and is not part of it.

    Raises:
        UserError: a prompt fills the model's context; the message says which and how long it may be.
    """
    settings = settings or SamplingSettings()
    end = end_of_text_id(tokenizer)
    encoded = [ids or [end] for ids in encode_ordinary(tokenizer, prompts)]
    for number, ids in enumerate(encoded, 1):
        if len(ids) >= model.shape.context:
            raise UserError(
                f"prompt {number} has {len(ids)} tokens, the model's context is {model.shape.context}; shorten it to "
                f"{model.shape.context - 1} or fewer"
            )
    continued = generate_tokens(model, encoded, end, settings, batch)
    answers = []
    for prompt, tokens in zip(prompts, continued, strict=True):
        stopped: Stop = "end"
        if tokens[-1] != end:
            stopped = "length" if len(tokens) == settings.max_new_tokens else "context"
        kept = [token for token in tokens if token != end]
        answers.append(Generation(prompt, tokenizer.decode(kept), tuple(tokens), stopped))
    return answers


def generate_tokens(
    model: GPT2,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    batch: int = BATCH,
) -> list[list[int]]:
    """Continue prompts of token ids (none empty); a continuation's last token is `end` where it came to one."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))  # near lengths together
    results: dict[int, list[int]] = {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        generators = [_generator(settings.seed, row) for row in rows]
        continued = _generate_batch(model, [prompts[row] for row in rows], end, settings, generators)
        results.update(zip(rows, continued, strict=True))
    return [results[row] for row in range(len(prompts))]


@torch.inference_mode()
def _generate_batch(
    model: GPT2,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    generators: Sequence[torch.Generator],
) -> list[list[int]]:
    device = model.wte.weight.device
    matrix = model.wte.weight[: model.shape.vocab]  # a row that pads the vocabulary is never drawn
    sequences = [list(prompt) for prompt in prompts]
    limits = [min(len(prompt) + settings.max_new_tokens, model.shape.context) for prompt in prompts]
    running = [len(prompt) < limit for prompt, limit in zip(prompts, limits, strict=True)]
    cache = [KeyValueCache() for _ in range(model.shape.layers)]
    fed, upto = 0, min(map(len, prompts))
    while any(running):
        # A row that has ended is fed its last token over and over: rows do not see one another.
        columns = [[row[min(at, len(row) - 1)] for at in range(fed, upto)] for row in sequences]
        hidden = model.hidden(torch.tensor(columns, device=device), cache)[:, -1]
        wanted = [row for row, tokens in enumerate(sequences) if running[row] and len(tokens) == upto]
        if wanted:
            logits = F.linear(hidden[wanted], matrix).float().cpu()
            for row, token in zip(wanted, draw(logits, settings, [generators[row] for row in wanted]), strict=True):
                sequences[row].append(token)
                running[row] = token != end and len(sequences[row]) < limits[row]
        fed, upto = upto, upto + 1
    return [row[len(prompt) :] for row, prompt in zip(sequences, prompts, strict=True)]


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


def _generator(seed: int, row: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
