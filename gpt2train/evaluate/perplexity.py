"""Perplexity on held-out documents, with sliding windows; does not import torch.

Perplexity per token depends on the tokenizer. Perplexity per word and bits per byte do not, so that they can be
compared between models.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.text_units import has_unspaced, units_of
from gpt2train.data.tokenizer import END_OF_TEXT, Tokenizer, encode_ordinary
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.metrics import Result, perplexity, significant
from gpt2train.evaluate.scoring_request import ScoringRequest

DEFINITION = "each document after {start}; perplexity = exp(-log p / count), words split at white space"
BY_CHARACTERS = "; in scripts without spaces between words each character is a word"
CHUNK = 64  # documents scored at a time; bounds the memory for a stream of documents


def windows(tokens: Sequence[int], context: int, stride: int, given: int = 1) -> Iterator[ScoringRequest]:
    """Split a sequence into windows that score every token but the first `given` ones exactly once.

    The first window scores all its tokens; each later one moves by `stride` and scores the new tokens, which then have
    at least `context - stride` tokens of context (Megatron's `--overlapping-eval`). `stride = context` is the cheapest;
    a small stride costs context / stride times as much and measures the model with more context.
    """
    targets = len(tokens) - 1
    scored = min(context, targets)
    if scored >= given:
        yield ScoringRequest(tuple(tokens[: scored + 1]), scored + 1 - given)
    while scored < targets:
        start = scored + stride - context
        end = min(scored + stride, targets)
        yield ScoringRequest(tuple(tokens[start : end + 1]), end - scored)
        scored = end


def document_perplexity(scorer: Scorer, texts: Iterable[str], stride: int | None = None) -> Result:
    """Compute the perplexity of documents, each after `<|endoftext|>` or what the template puts before a text.

    Args:
        scorer: model and tokenizer.
        texts: documents; those without a word are skipped.
        stride: tokens by which the window moves; half the context by default.

    Returns:
        JSON-serialisable result. `word_perplexity` = exp(-log p / words), words split at white space, and
        `bits_per_byte` as in lm-evaluation-harness; `token_perplexity` = exp(-log p / tokens). In scripts without
        spaces between words a word is a character, and `definition` says so where the documents have any.

    Raises:
        UserError: there is no document with a word, or the stride does not fit the context.
    """
    context, tokenizer = scorer.context, scorer.tokenizer
    stride = checked_stride(stride, context)
    start = start_ids(tokenizer)
    log_prob, counts = 0.0, {"documents": 0, "words": 0, "tokens": 0, "bytes": 0}
    token_counts: Counter[int] = Counter()
    by_characters = False
    stream = (text for text in texts if text.strip())
    while chunk := list(islice(stream, CHUNK)):
        encoded = encode_ordinary(tokenizer, chunk)
        requests = [request for ids in encoded for request in windows([*start, *ids], context, stride, len(start))]
        log_prob += math.fsum(answer.log_prob for answer in scorer.score(requests))
        counts["documents"] += len(chunk)
        counts["words"] += sum(len(units_of(text)) for text in chunk)
        by_characters = by_characters or any(map(has_unspaced, chunk))
        counts["tokens"] += sum(map(len, encoded))
        counts["bytes"] += sum(len(text.encode()) for text in chunk)
        token_counts.update(chain.from_iterable(encoded))
    if not counts["documents"]:
        raise UserError("no held-out document contains a word; give more documents or a larger test split")
    unigram = unigram_loss(token_counts, scorer.model.shape.vocab)
    return counts | {
        "context": context,
        "stride": stride,
        "loss": significant(-log_prob / counts["tokens"]),
        "token_perplexity": perplexity(-log_prob / counts["tokens"]),
        "word_perplexity": perplexity(-log_prob / counts["words"]),
        "bits_per_byte": significant(-log_prob / math.log(2) / counts["bytes"]),
        "unigram_perplexity": perplexity(unigram),
        "definition": DEFINITION.format(start=_name(tokenizer)) + (BY_CHARACTERS if by_characters else ""),
        "notes": notes(-log_prob / counts["tokens"], unigram),
    }


def _name(tokenizer: Tokenizer) -> str:
    """Name of what a document comes after."""
    found = (tokenizer.id_to_token(number) for number in prefix_ids(tokenizer))
    return "".join(token or "" for token in found) or END_OF_TEXT


def unigram_loss(counts: Counter[int], vocab: int) -> float:
    """Return a text's loss under a unigram model of its own tokens (add-one), nats per token; log vocab if short."""
    total = counts.total()
    return -math.fsum(count * math.log((count + 1) / (total + vocab)) for count in counts.values()) / total


def notes(loss: float, unigram: float) -> list[str]:
    """Return likely causes of a loss above the unigram loss; empty if the loss is plausible."""
    if loss <= unigram:
        return []
    return [
        f"the token perplexity {perplexity(loss):.4g} is above {perplexity(unigram):.4g}, that of token counts alone: "
        "likely causes are too few training tokens, another kind of text than the training's, a wrong tokenizer, or "
        "damaged weights; compare the validation loss"
    ]


def checked_stride(stride: int | None, context: int) -> int:
    """Return the stride, by default half the context; UserError if it does not fit the context."""
    if stride is None:
        return max(1, context // 2)
    if not 1 <= stride <= context:
        raise UserError(f"stride {stride} does not fit the model's context; give 1 to {context}")
    return stride
