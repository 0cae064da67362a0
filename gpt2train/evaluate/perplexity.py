"""Perplexity on held-out documents and on WikiText: sliding windows, and numbers that tokenizers do not change.

Perplexity per token depends on the tokenizer; per word and per byte it does not, so those are the ones to compare.
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
from gpt2train.evaluate.span import Cut, Span
from gpt2train.model.gpt2 import GPT2

CHUNK = 64  # documents scored at a time, so that an endless stream of them needs no memory
EXPONENT_LIMIT = 20  # as Megatron: exp of at most 20


def windows(tokens: Sequence[int], context: int, stride: int) -> Iterator[Span]:
    """Cut a sequence into windows that score every token but the first exactly once.

    The first window scores all it can; each later one moves on by `stride` and scores the new tokens, which then see
    at least `context - stride` tokens before them (Megatron's `--overlapping-eval`). `stride = context` is the
    cheapest, a small stride costs context / stride times as much and is a fairer judge of the model.
    """
    targets = len(tokens) - 1
    scored = min(context, targets)
    if scored > 0:
        yield Span(tuple(tokens[: scored + 1]), scored)
    while scored < targets:
        start = scored + stride - context
        end = min(scored + stride, targets)
        yield Span(tuple(tokens[start : end + 1]), end - scored)
        scored = end


def document_perplexity(
    model: GPT2 | Cut,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> dict[str, Any]:
    """Perplexity of documents, each by itself after `<|endoftext|>`, as it stood in training.

    Args:
        stride: tokens a window moves on; half the context where not given.

    Returns:
        A JSON-able result. `word_perplexity` = exp(-log p / words), words split at white space, and `bits_per_byte`
        as in lm-evaluation-harness; `token_perplexity` = exp(-log p / tokens).

    Raises:
        UserError: there is no document with a word, or the stride does not fit the context.
    """
    context = model.shape.context
    stride = _checked_stride(stride, context)
    end = end_of_text_id(tokenizer)
    log_prob, counts = 0.0, {"documents": 0, "words": 0, "tokens": 0, "bytes": 0}
    seen: Counter[int] = Counter()
    stream = (text for text in texts if text.strip())
    while chunk := list(islice(stream, CHUNK)):
        encoded = encode_ordinary(tokenizer, chunk)
        spans = [span for ids in encoded for span in windows([end, *ids], context, stride)]
        log_prob += math.fsum(answer.log_prob for answer in score(model, spans, batch_tokens))
        counts["documents"] += len(chunk)
        counts["words"] += sum(len(text.split()) for text in chunk)
        counts["tokens"] += sum(map(len, encoded))
        counts["bytes"] += sum(len(text.encode()) for text in chunk)
        for ids in encoded:
            seen.update(ids)
    if not counts["documents"]:
        raise UserError("no held-out document with a word in it; give more documents or a larger test split")
    plain = unigram_loss(seen, model.shape.vocab)
    return counts | {
        "context": context,
        "stride": stride,
        "loss": significant(-log_prob / counts["tokens"]),
        "token_perplexity": perplexity(-log_prob / counts["tokens"]),
        "word_perplexity": perplexity(-log_prob / counts["words"]),
        "bits_per_byte": significant(-log_prob / math.log(2) / counts["bytes"]),
        "unigram_perplexity": perplexity(plain),
        "definition": "each document after <|endoftext|>; perplexity = exp(-log p / count), words split at white space",
        "notes": notes(-log_prob / counts["tokens"], plain),
    }


def wikitext_perplexity(
    model: GPT2 | Cut,
    tokenizer: Tokenizer,
    text: str,
    stride: int | None = 32,
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Perplexity of a WikiText file in its tokenised form (`wiki.test.tokens`), as Megatron-LM computes it.

    The text is put back into plain English, encoded as one sequence and scored in windows. The number to compare is
    `adjusted_perplexity` = exp(loss * (tokens - 1) / (words - 1)) with the words of the original file.

    Args:
        stride: tokens a window moves on (Megatron's `--overlapping-eval`); the context where None.
        group: processes that share the work (`gpt2train.evaluate.scoring.score`).

    Returns:
        A JSON-able result, `notes` on what looks wrong among it.

    Raises:
        UserError: the text has fewer than two words, or the stride does not fit the context.
    """
    context = model.shape.context
    stride = _checked_stride(context if stride is None else stride, context)
    words = len(text.strip().split(" "))
    tokens = encode_ordinary(tokenizer, [detokenize_wikitext(text)])[0]
    if words < 2 or len(tokens) < 2:
        raise UserError("the text has fewer than two words; give the WikiText file wiki.test.tokens")
    spans = list(windows(tokens, context, stride))
    log_prob = math.fsum(answer.log_prob for answer in score(model, spans, batch_tokens, report, group))
    loss, plain = -log_prob / (len(tokens) - 1), unigram_loss(Counter(tokens), model.shape.vocab)
    return {
        "words": words,
        "tokens": len(tokens),
        "context": context,
        "stride": stride,
        "loss": significant(loss),
        "token_perplexity": perplexity(loss, EXPONENT_LIMIT),
        "adjusted_perplexity": perplexity(loss * (len(tokens) - 1) / (words - 1), EXPONENT_LIMIT),
        "unigram_perplexity": perplexity(plain, EXPONENT_LIMIT),
        "definition": "one sequence, detokenised; adjusted = exp(loss * (tokens - 1) / (original words - 1)), "
        f"exponents capped at {EXPONENT_LIMIT} (Megatron-LM WIKITEXT103)",
        "notes": notes(loss, plain),
    }


def unigram_loss(counts: Counter[int], vocab: int) -> float:
    """Nats per token of a text under its own token counts (add-one), which know no order: near log vocab if short."""
    total = counts.total()
    return -math.fsum(count * math.log((count + 1) / (total + vocab)) for count in counts.values()) / total


def notes(loss: float, plain: float) -> list[str]:
    """What usually stands behind a loss that token counts alone undercut; empty when nothing looks wrong."""
    if loss <= plain:
        return []
    return [
        f"the token perplexity {perplexity(loss):.4g} is above {perplexity(plain):.4g}, that of token counts alone: "
        "usually too few training tokens, another kind of text than the training's, a wrong tokenizer, or weights that "
        "were damaged on the way; the validation loss tells which"
    ]


def detokenize_wikitext(text: str) -> str:
    """Put WikiText's tokenised English back into plain text, by Megatron-LM's rules in their order."""
    text = text.replace("s '", "s'")
    for mark in "-,.":
        text = text.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        text = text.replace(f" {mark} ", f"{mark} ")
    for opening, closing in ("()", "[]", "{}", '""', "''"):
        first, last = re.escape(opening), re.escape(closing)
        text = re.sub(rf"{first}\s*([^{last}]*?)\s*{last}", rf"{opening}\1{closing}", text)
    for found, put in (
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" ° ", "°"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    ):
        text = text.replace(found, put)
    return text


def _checked_stride(stride: int | None, context: int) -> int:
    if stride is None:
        return max(1, context // 2)
    if not 1 <= stride <= context:
        raise UserError(f"stride {stride} does not fit the model's context; give 1 to {context}")
    return stride
