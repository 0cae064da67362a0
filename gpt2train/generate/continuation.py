"""Continue prompts: key-value cache, batches of unequal prompts, greedy or sampled.

Prompts of unequal lengths run together; each row has its own positions and sees its own tokens only, so it gives what
it would give alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.generate.decoder import LocalDecoder
from gpt2train.generate.draw import draw, generator_of
from gpt2train.generate.settings import SamplingSettings
from gpt2train.model.gpt2 import GPT2

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
        continued = _generate_batch(model, [prompts[row] for row in rows], end, settings, rows)
        results.update(zip(rows, continued, strict=True))
    return [results[row] for row in range(len(prompts))]


def _generate_batch(
    model: GPT2,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    places: Sequence[int],
) -> list[list[int]]:
    limits = [min(settings.max_new_tokens, model.shape.context - len(prompt)) for prompt in prompts]
    made: list[list[int]] = [[] for _ in prompts]
    generators = [generator_of(settings.seed, place) for place in places]
    running = [row for row, limit in enumerate(limits) if limit > 0]
    if not running:
        return made
    longest = max(len(prompts[row]) + limits[row] for row in running)
    decoder = LocalDecoder(model, len(running), longest)
    logits = decoder.add([prompts[row] for row in running])
    while True:
        tokens = draw(logits, settings, [generators[row] for row in running])
        for row, token in zip(running, tokens, strict=True):
            made[row].append(token)
        stay = [i for i, row in enumerate(running) if tokens[i] != end and len(made[row]) < limits[row]]
        if not stay:
            return made
        if len(stay) < len(running):
            decoder.select(stay)
            running = [running[i] for i in stay]
        logits = decoder.step([made[row][-1] for row in running])
