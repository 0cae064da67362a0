"""Beam search: follow the likeliest continuations side by side and score the finished ones by their length.

The rules are those of `transformers.generate(num_beams=…)`, answer by answer and score by score. Megatron-LM's server
differs in three things: it also compares ended candidates when it decides whether an open one can still win, at the
length limit it takes open ones of a lower rank too, and it offers the rows that pad the vocabulary as tokens.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from gpt2train.data.tokenizer import end_of_text_id
from gpt2train.errors import RunError, UserError
from gpt2train.generate.decoder import Decoder
from gpt2train.generate.sequence import Stop
from gpt2train.generate.settings import BeamSettings


@dataclass(frozen=True)
class Beam:
    """A finished continuation: its tokens, the one that ended it included, and its score."""

    tokens: tuple[int, ...]
    score: float
    stopped: Stop
    text: str = ""
    """Without what ended it."""


def beam_search(
    decoder: Decoder,
    prompt: Sequence[int],
    settings: BeamSettings,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
) -> list[Beam]:
    """The best continuations of one prompt, `settings.beams` of them, the best first.

    Args:
        decoder: with no rows in it; when the search is over there are none again.
        prompt: token ids, at least one.
        settings: how many, how long, how they are scored.
        tokenizer: what makes the texts; its `<|endoftext|>` ends an answer where `end` is not given.
        end: id that ends an answer.

    Raises:
        UserError: the prompt fills the context, or more beams are asked for than the decoder has rows.
        RunError: the model gives numbers that are not finite.
    """
    if len(prompt) >= decoder.context:
        raise UserError(f"the prompt has {len(prompt)} tokens, the context is {decoder.context}; give fewer")
    if settings.beams > decoder.rows:
        raise UserError(f"{settings.beams} beams are asked for, {decoder.rows} can run together; ask for fewer")
    steps = beam_steps(decoder.context - len(prompt), settings, tokenizer, end)
    next(steps)
    logits = decoder.add([prompt])
    try:
        while True:
            rows, tokens = steps.send(logits)
            decoder.select(rows)
            logits = decoder.step(tokens)
    except StopIteration as over:
        return list(over.value)
    finally:
        decoder.select([])


def beam_steps(
    room: int, settings: BeamSettings, tokenizer: Tokenizer | None = None, end: int | None = None
) -> Generator[tuple[list[int], list[int]], Tensor, list[Beam]]:
    """The search apart from who runs the model, so that it can share a decoder with others.

    Begun with `next`, then sent logits [rows, vocab], of one row after the prompt. It gives the rows that go on, in
    the order of the next logits, with their next tokens; what it returns are the answers.

    Args:
        room: tokens that fit in behind the prompt.
    """
    if end is None and tokenizer is not None:
        end = end_of_text_id(tokenizer)
    beams = settings.beams
    stops = {*settings.stop_tokens, *(() if end is None else (end,))}
    # Enough candidates that `beams` of them go on, even if every beam also ends in every way there is.
    wanted = max(2, 1 + len(stops)) * beams
    limit = min(settings.max_new_tokens, room)
    going: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[Beam] = []
    logits = yield [], []
    for length in range(1, limit + 1):
        sums = logits.log_softmax(1) + torch.tensor([total for _, total in going])[:, None]
        best = sums.view(-1).topk(min(wanted, sums.numel()))
        if not torch.isfinite(best.values[0]):
            raise RunError("the model gives numbers that are not finite: its weights are damaged")
        rows: list[int] = []
        following: list[tuple[tuple[int, ...], float]] = []
        for rank, (total, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            row, token = divmod(place, sums.shape[1])
            tokens = (*going[row][0], token)
            if token in stops or length == limit:
                if rank < beams:  # those behind are only there so that enough go on
                    done.append(Beam(tokens, total / length**settings.length_penalty, "length"))
            elif len(rows) < beams:
                rows.append(row)
                following.append((tokens, total))
        done = sorted(done, key=lambda beam: -beam.score)[:beams]
        if not following or _over(done, following[0][1], length, limit, settings):
            break
        going = following
        logits = yield rows, [tokens[-1] for tokens, _ in going]
    return [_told(beam, stops, end, settings, tokenizer) for beam in done]


def _over(done: Sequence[Beam], best_open: float, length: int, limit: int, settings: BeamSettings) -> bool:
    """Whether no open continuation can, by the rule chosen, become one of the answers."""
    if len(done) < settings.beams:
        return False
    if settings.early_stopping is True:
        return True
    reach = limit if settings.early_stopping == "never" and settings.length_penalty > 0 else length
    return best_open / reach**settings.length_penalty <= done[-1].score


def _told(beam: Beam, stops: set[int], end: int | None, settings: BeamSettings, tokenizer: Tokenizer | None) -> Beam:
    """The answer with its text and why it ended."""
    last = beam.tokens[-1]
    ended = last in stops
    stopped: Stop = "length" if len(beam.tokens) == settings.max_new_tokens else "context"
    if ended:
        stopped = "end" if last == end else "stop"
    kept = beam.tokens[:-1] if ended else beam.tokens
    return replace(beam, stopped=stopped, text="" if tokenizer is None else tokenizer.decode(list(kept)))
