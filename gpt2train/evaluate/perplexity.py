"""Perplexity on held-out documents and on WikiText, with sliding windows.

Perplexity per token depends on the tokenizer. Perplexity per word and bits per byte do not, so that they can be
compared between models.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch.distributed as dist
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from gpt2train.evaluate.scoring import BATCH_TOKENS, Report, perplexity, score, significant
from gpt2train.evaluate.scoring_request import DistributedScorer, ScoringRequest
from gpt2train.model.gpt2 import GPT2

CHUNK = 64  # documents scored at a time; bounds the memory for a stream of documents
EXPONENT_LIMIT = 20  # as in Megatron: exp of at most 20


def windows(tokens: Sequence[int], context: int, stride: int) -> Iterator[ScoringRequest]:
    """Split a sequence into windows that score every token but the first exactly once.

    The first window scores all its tokens; each later one moves by `stride` and scores the new tokens, which then have
    at least `context - stride` tokens of context (Megatron's `--overlapping-eval`). `stride = context` is the cheapest;
    a small stride costs context / stride times as much and measures the model with more context.
    """
    targets = len(tokens) - 1
    scored = min(context, targets)
    if scored > 0:
        yield ScoringRequest(tuple(tokens[: scored + 1]), scored)
    while scored < targets:
        start = scored + stride - context
        end = min(scored + stride, targets)
        yield ScoringRequest(tuple(tokens[start : end + 1]), end - scored)
        scored = end


def document_perplexity(
    model: GPT2 | DistributedScorer,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> dict[str, Any]:
    """Compute the perplexity of documents, each separately after `<|endoftext|>`, as in training.

    Args:
        model: model in this process or distributed over several.
        tokenizer: tokenizer of the model.
        texts: documents; those without a word are skipped.
        stride: tokens by which the window moves; half the context by default.
        batch_tokens: tokens per batch, including padding; bounds the memory.

    Returns:
        JSON-serialisable result. `word_perplexity` = exp(-log p / words), words split at white space, and
        `bits_per_byte` as in lm-evaluation-harness; `token_perplexity` = exp(-log p / tokens).

    Raises:
        UserError: there is no document with a word, or the stride does not fit the context.
    """
    context = model.shape.context
    stride = _checked_stride(stride, context)
    end = end_of_text_id(tokenizer)
    log_prob, counts = 0.0, {"documents": 0, "words": 0, "tokens": 0, "bytes": 0}
    token_counts: Counter[int] = Counter()
    stream = (text for text in texts if text.strip())
    while chunk := list(islice(stream, CHUNK)):
        encoded = encode_ordinary(tokenizer, chunk)
        requests = [request for ids in encoded for request in windows([end, *ids], context, stride)]
        log_prob += math.fsum(answer.log_prob for answer in score(model, requests, batch_tokens))
        counts["documents"] += len(chunk)
        counts["words"] += sum(len(text.split()) for text in chunk)
        counts["tokens"] += sum(map(len, encoded))
        counts["bytes"] += sum(len(text.encode()) for text in chunk)
        for ids in encoded:
            token_counts.update(ids)
    if not counts["documents"]:
        raise UserError("no held-out document contains a word; give more documents or a larger test split")
    unigram = unigram_loss(token_counts, model.shape.vocab)
    return counts | {
        "context": context,
        "stride": stride,
        "loss": significant(-log_prob / counts["tokens"]),
        "token_perplexity": perplexity(-log_prob / counts["tokens"]),
        "word_perplexity": perplexity(-log_prob / counts["words"]),
        "bits_per_byte": significant(-log_prob / math.log(2) / counts["bytes"]),
        "unigram_perplexity": perplexity(unigram),
        "definition": "each document after <|endoftext|>; perplexity = exp(-log p / count), words split at white space",
        "notes": notes(-log_prob / counts["tokens"], unigram),
    }


def wikitext_perplexity(
    model: GPT2 | DistributedScorer,
    tokenizer: Tokenizer,
    text: str,
    stride: int | None = 32,
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Compute the perplexity of a WikiText file in its tokenised form (`wiki.test.tokens`) as Megatron-LM does.

    The text is detokenised, encoded as one sequence and scored in windows. The number to compare is
    `adjusted_perplexity` = exp(loss * (tokens - 1) / (words - 1)), with the words of the original file.

    Args:
        model: model in this process or distributed over several.
        tokenizer: tokenizer of the model.
        text: content of the file.
        stride: tokens by which the window moves (Megatron's `--overlapping-eval`); None for the context.
        batch_tokens: tokens per batch, including padding; bounds the memory.
        report: called after every batch with the numbers of finished and of all windows.
        group: processes that share the work (`gpt2train.evaluate.scoring.score`).

    Returns:
        JSON-serialisable result, with `notes` on suspicious scores.

    Raises:
        UserError: the text has fewer than two words, or the stride does not fit the context.
    """
    context = model.shape.context
    stride = _checked_stride(context if stride is None else stride, context)
    words = len(text.strip().split(" "))
    tokens = encode_ordinary(tokenizer, [detokenize_wikitext(text)])[0]
    if words < 2 or len(tokens) < 2:
        raise UserError("the text has fewer than two words; give the WikiText file wiki.test.tokens")
    requests = list(windows(tokens, context, stride))
    log_prob = math.fsum(answer.log_prob for answer in score(model, requests, batch_tokens, report, group))
    loss, unigram = -log_prob / (len(tokens) - 1), unigram_loss(Counter(tokens), model.shape.vocab)
    return {
        "words": words,
        "tokens": len(tokens),
        "context": context,
        "stride": stride,
        "loss": significant(loss),
        "token_perplexity": perplexity(loss, EXPONENT_LIMIT),
        "adjusted_perplexity": perplexity(loss * (len(tokens) - 1) / (words - 1), EXPONENT_LIMIT),
        "unigram_perplexity": perplexity(unigram, EXPONENT_LIMIT),
        "definition": "one sequence, detokenised; adjusted = exp(loss * (tokens - 1) / (original words - 1)), "
        f"exponents capped at {EXPONENT_LIMIT} (Megatron-LM WIKITEXT103)",
        "notes": notes(loss, unigram),
    }


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


def detokenize_wikitext(text: str) -> str:
    """Detokenise WikiText by Megatron-LM's rules, in their order."""
    text = text.replace("s '", "s'")
    for mark in "-,.":
        text = text.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        text = text.replace(f" {mark} ", f"{mark} ")
    for opening, closing in ("()", "[]", "{}", '""', "''"):
        first, last = re.escape(opening), re.escape(closing)
        text = re.sub(rf"{first}\s*([^{last}]*?)\s*{last}", rf"{opening}\1{closing}", text)
    for found, replacement in (
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" ° ", "°"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    ):
        text = text.replace(found, replacement)
    return text


def _checked_stride(stride: int | None, context: int) -> int:
    if stride is None:
        return max(1, context // 2)
    if not 1 <= stride <= context:
        raise UserError(f"stride {stride} does not fit the model's context; give 1 to {context}")
    return stride
