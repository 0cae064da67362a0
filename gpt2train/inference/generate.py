"""Continuation of prompts with a KV cache, in batches, greedy or sampled.

Prompts of different lengths run in one batch. Each row has its own positions and attends to its own tokens only, so
its output does not depend on the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gpt2train.data.tokenizer import Tokenizer, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.inference.batch import Batch, Continuation
from gpt2train.inference.decoder import OpenedModel, decoder_of
from gpt2train.inference.prompts import encode_for, ids_without_token
from gpt2train.inference.sequence import Stop, TokenScore, TokenSequence, check_prompt
from gpt2train.inference.settings import SamplingSettings
from gpt2train.model.families import context_length

BATCH = 8  # sequences per batch


@dataclass(frozen=True)
class Generation:
    """Continuation of one prompt."""

    prompt: str
    text: str
    """Text without the token or string that ended it."""
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    """Generated token ids, including the one that ended the text."""
    stopped: Stop
    """Reason of the end."""
    scores: tuple[TokenScore, ...] = ()
    """Scores of `tokens`; empty without `log_probs`."""
    prompt_scores: tuple[TokenScore, ...] = ()
    """Scores of `prompt_tokens` after the first; empty without `prompt_log_probs`. If a window cut the prompt, scores
    of its last tokens only."""


def generate(
    model: OpenedModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: SamplingSettings | None = None,
    batch: int = BATCH,
) -> list[Generation]:
    """Continue every prompt `settings.samples` times; the samples of one prompt are adjacent in the result.

    The result depends on the prompts and settings, not on the batching. An empty prompt begins a new document. A prompt
    comes after what the tokenizer's template puts before a text (`<s>` of Llama 2).
    `<|endoftext|>` ends a continuation and is not part of its text.

    Raises:
        UserError: a prompt fills the model's context and no window is set; the message names the prompt and the
            longest length allowed.
    """
    settings = settings or SamplingSettings()
    encoded = encode_for(model.shape, tokenizer, prompts)
    for number, ids in enumerate(encoded, 1):
        try:
            check_prompt(len(ids), settings, context_length(model.shape))
        except ValueError as error:
            raise UserError(f"prompt {number} {error}") from error
    return [
        Generation(
            prompts[sequence.prompt_index],
            sequence.text,
            tuple(sequence.prompt),
            tuple(sequence.tokens),
            cast(Stop, sequence.finished),
            tuple(sequence.scores),
            tuple(sequence.prompt_scores),
        )
        for sequence in continue_tokens(model, encoded, settings, tokenizer, end_of_text_id(tokenizer), batch)
    ]


def continue_tokens(
    model: OpenedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
    batch: int = BATCH,
) -> list[TokenSequence]:
    """Continue non-empty prompts of token ids until they end; the samples of one prompt are adjacent in the result.

    Sequences of similar length start together; a waiting sequence joins as soon as a running one ends.
    """
    context = context_length(model.shape)
    excluded = None if tokenizer is None else ids_without_token(model.shape, tokenizer, settings.stop_tokens)
    sequences = [
        TokenSequence(prompt, settings, context, tokenizer, end, index, sample, excluded)
        for index, prompt in enumerate(prompts)
        for sample in range(settings.samples)
    ]
    waiting = sorted(sequences, key=lambda sequence: -sequence.length)  # popped from the end: shortest first
    if not sequences:
        return []
    longest = waiting[0].length + settings.max_new_tokens
    running = Batch(decoder_of(model, min(batch, len(sequences)), min(longest, context)))
    while waiting or running.running:
        if running.free and waiting:
            joining = [Continuation(waiting.pop()) for _ in range(min(running.free, len(waiting)))]
            ended = running.join(joining)
        else:
            ended = running.step()
        for error in (job.error for job in ended if job.error):
            raise error
    return sequences
