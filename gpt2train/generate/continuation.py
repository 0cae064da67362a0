"""Continue prompts: key-value cache, batches of unequal prompts, greedy or sampled.

Prompts of unequal lengths run together; each row has its own positions and sees its own tokens only, so it gives what
it would give alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.generate.batch import Batch
from gpt2train.generate.decoder import Opened, decoder_of
from gpt2train.generate.sequence import Stop, TokenScore, TokenSequence, check_prompt
from gpt2train.generate.settings import SamplingSettings
from gpt2train.model.gpt2 import GPT2

BATCH = 8  # sequences that run together


@dataclass(frozen=True)
class Generation:
    """What a model made of a prompt, and why it ended there; the scores are there where they were asked for."""

    prompt: str
    text: str
    """Without what ended it."""
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    """The one that ended it included."""
    stopped: Stop
    scores: tuple[TokenScore, ...] = ()
    """Of each of `tokens`."""
    prompt_scores: tuple[TokenScore, ...] = ()
    """Of each of `prompt_tokens` after the first; where a window cut the prompt, of the last so many."""


def generate(
    model: GPT2 | Opened,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: SamplingSettings | None = None,
    batch: int = BATCH,
) -> list[Generation]:
    """Continue every prompt, `settings.samples` times each; the answers to a prompt lie side by side.

    The answers depend on the prompts and settings, not on how they are batched. An empty prompt begins a new document.
    `<|endoftext|>` ends a continuation and is not part of its text.

    Raises:
        UserError: a prompt fills the model's context and no window was asked for; the message says which prompt and
            how long it may be.
    """
    settings = settings or SamplingSettings()
    encoded = encode_prompts(tokenizer, prompts)
    for number, ids in enumerate(encoded, 1):
        try:
            check_prompt(len(ids), settings, model.shape.context)
        except ValueError as error:
            raise UserError(f"prompt {number} {error}") from error
    sequences = continue_tokens(model, encoded, settings, tokenizer, end_of_text_id(tokenizer), batch)
    return [generation(prompts[sequence.place], sequence) for sequence in sequences]


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt; an empty one is `<|endoftext|>`, after which a document begins."""
    return [ids or [end_of_text_id(tokenizer)] for ids in encode_ordinary(tokenizer, prompts)]


def generation(prompt: str, sequence: TokenSequence) -> Generation:
    """The answer that a finished sequence is."""
    assert sequence.finished is not None
    return Generation(
        prompt,
        sequence.text,
        tuple(sequence.prompt),
        tuple(sequence.tokens),
        sequence.finished,
        tuple(sequence.scores),
        tuple(sequence.prompt_scores),
    )


def continue_tokens(
    model: GPT2 | Opened,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
    batch: int = BATCH,
) -> list[TokenSequence]:
    """Continue prompts of token ids (none empty) to their ends; the samples of a prompt lie side by side.

    Sequences of near lengths begin together, and the next joins as soon as one has ended.
    """
    context = model.shape.context
    sequences = [
        TokenSequence(prompt, settings, context, tokenizer, end, place, sample)
        for place, prompt in enumerate(prompts)
        for sample in range(settings.samples)
    ]
    waiting = sorted(sequences, key=lambda sequence: -sequence.length)  # the shortest first, from the end
    if not sequences:
        return []
    longest = waiting[0].length + settings.max_new_tokens
    running = Batch(decoder_of(model, min(batch, len(sequences)), min(longest, context)))
    while waiting or running.going:
        if running.free and waiting:
            running.join([waiting.pop() for _ in range(min(running.free, len(waiting)))])
        else:
            running.step()
    return sequences


def generate_tokens(
    model: GPT2 | Opened,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    batch: int = BATCH,
) -> list[list[int]]:
    """Tokens that continue each prompt; a continuation's last token is `end` where it came to one."""
    return [sequence.tokens for sequence in continue_tokens(model, prompts, settings, end=end, batch=batch)]
