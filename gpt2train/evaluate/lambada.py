"""LAMBADA by the three definitions in use, side by side: the same weights score 33 % by one and 46 % by another.

* `lambada_openai`, the headline: strict whole word, as lm-evaluation-harness. The passage is cut at its last space,
  the target is that space and the last word, and all its tokens must be the most likely ones. Its perplexity is per
  word: exp(-mean over the passages of the target's log-probability).
* `last_token`: Megatron's default. The target is the last BPE token of the passage, whatever it is a part of.
* `megatron_strict`: Megatron's `--strict-lambada`. The last word as `text.split()` gives it, the context stripped, the
  target encoded by itself with one space in front.

Paper: Paperno et al. 2016, "The LAMBADA dataset". GPT-2 124M has accuracy 0.3256 and perplexity 40.06 by
`lambada_openai`, and 0.467 by `last_token`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id
from gpt2train.evaluate.passages import LAMBADA, unigram_perplexity
from gpt2train.evaluate.scoring import BATCH_TOKENS, Report, perplexity, score, significant
from gpt2train.evaluate.span import Cut, Score, Span
from gpt2train.model.gpt2 import GPT2

DEFINITIONS = {
    "lambada_openai": "strict whole word: every token of ' ' + text.split(' ')[-1] is the most likely one, the passage "
    "encoded whole (lm-evaluation-harness lambada_openai); perplexity per word = exp(-mean log p(target))",
    "last_token": "the last BPE token of the passage is the most likely one (Megatron-LM's default)",
    "megatron_strict": "every token of ' ' + text.split()[-1], encoded by itself after the stripped context, is the "
    "most likely one (Megatron-LM --strict-lambada)",
}


@dataclass(frozen=True)
class Pair:
    """What is given and what is asked, as token ids. The context is never empty."""

    context: tuple[int, ...]
    target: tuple[int, ...]

    def span(self, context_length: int) -> Span:
        """The pair as one sequence, left-truncated to what a model of this context length can take.

        Of a target longer than the context its end is scored (a word of hundreds of tokens, an address).
        """
        return Span((self.context + self.target)[-(context_length + 1) :], min(len(self.target), context_length))


def openai_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Context and target by lm-evaluation-harness: encode the passage whole, split behind the context's tokens.

    Spaces at the context's end go to the target; an empty context is `<|endoftext|>`.
    """
    end = end_of_text_id(tokenizer)
    contexts = [text.rpartition(" ")[0].rstrip() for text in passages]
    # Without a space in the text the target still gets one in front.
    whole = encode_ordinary(tokenizer, [text if " " in text else f" {text}" for text in passages])
    heads = encode_ordinary(tokenizer, contexts)
    return [
        Pair(tuple(ids[: len(head)]) or (end,), tuple(ids[len(head) :])) for ids, head in zip(whole, heads, strict=True)
    ]


def last_token_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Context and target by Megatron's default: the target is the last BPE token."""
    end = end_of_text_id(tokenizer)
    return [Pair(tuple(ids[:-1]) or (end,), tuple(ids[-1:])) for ids in encode_ordinary(tokenizer, passages)]


def strict_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Context and target by Megatron's `--strict-lambada`: context and target encoded apart."""
    end = end_of_text_id(tokenizer)
    words = [text.split()[-1] for text in passages]
    contexts = [text[: text.rfind(word)].strip() for text, word in zip(passages, words, strict=True)]
    heads = encode_ordinary(tokenizer, contexts)
    targets = encode_ordinary(tokenizer, [f" {word}" for word in words])
    return [Pair(tuple(head) or (end,), tuple(target)) for head, target in zip(heads, targets, strict=True)]


def evaluate_lambada(
    model: GPT2 | Cut,
    tokenizer: Tokenizer,
    passages: Sequence[str],
    batch_tokens: int = BATCH_TOKENS,
    report: Report | None = None,
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Score passages by the three definitions.

    Args:
        model: whole, or one that is cut over processes.
        group: processes that share the work (`gpt2train.evaluate.scoring.score`).
        report: told after every batch how many sequences are done and how many there are; passages that are one
            sequence by several definitions are computed once.

    Returns:
        A JSON-able result: `passages`, `truncated` (passages longer than the model's context), `definitions` with
        `accuracy`, `correct`, `standard_error` (and `perplexity` for `lambada_openai`) and what each means,
        `unigram_perplexity` of the same targets, and `notes` on what looks wrong.
    """
    context = model.shape.context
    pairs = {
        "lambada_openai": openai_pairs(tokenizer, passages),
        "last_token": last_token_pairs(tokenizer, passages),
        "megatron_strict": strict_pairs(tokenizer, passages),
    }
    truncated = sum(len(pair.context) + len(pair.target) > context + 1 for pair in pairs["lambada_openai"])
    spans = {name: [pair.span(context) for pair in some] for name, some in pairs.items()}
    scores = _score_once(model, spans, batch_tokens, report, group)
    result: dict[str, Any] = {
        "passages": len(passages),
        "truncated": truncated,
        "headline": "lambada_openai",
        "definitions": {name: _accuracy(scores[name]) | {"definition": DEFINITIONS[name]} for name in DEFINITIONS},
        "unigram_perplexity": significant(unigram_perplexity(passages)),
    }
    mean = sum(answer.log_prob for answer in scores["lambada_openai"]) / len(passages)
    result["definitions"]["lambada_openai"]["perplexity"] = perplexity(-mean)
    result["notes"] = notes(result)
    return result


def notes(result: dict[str, Any]) -> list[str]:
    """What a reader of the result should know: another set than LAMBADA's, and what usually stands behind scores that
    no trained model should have."""
    said = []
    if result["passages"] != LAMBADA:
        said.append(
            f"{result['passages']:,} passages, LAMBADA's test set has {LAMBADA:,}: compare these figures with "
            "others of this file only"
        )
    headline = result["definitions"]["lambada_openai"]
    if headline["correct"] == 0:
        said.append(
            f"not one of {result['passages']} last words is right: usually too few training tokens (a few million "
            "bring none), many epochs over little text (compare training and validation loss), or a tokenizer that is "
            "not the one of the training"
        )
    if headline["perplexity"] > result["unigram_perplexity"]:
        said.append(
            f"the word perplexity {headline['perplexity']:.4g} is above {result['unigram_perplexity']:.4g}, that of "
            "word counts alone: usually another kind of text than the training's, a wrong tokenizer, or weights that "
            "were damaged on the way; the validation loss tells which"
        )
    return said


def _score_once(
    model: GPT2 | Cut,
    spans: dict[str, list[Span]],
    batch_tokens: int,
    report: Report | None,
    group: dist.ProcessGroup | None,
) -> dict[str, list[Score]]:
    """Score each distinct sequence once, with the longest target asked of it; shorter targets are its tail.

    The three definitions mostly differ in the target's length only, so this is near three times less work.
    """
    longest: dict[tuple[int, ...], int] = {}
    for some in spans.values():
        for span in some:
            longest[span.tokens] = max(longest.get(span.tokens, 0), span.scored)
    answers = score(model, [Span(tokens, scored) for tokens, scored in longest.items()], batch_tokens, report, group)
    by_tokens = dict(zip(longest, answers, strict=True))
    return {name: [_tail(by_tokens[span.tokens], span.scored) for span in some] for name, some in spans.items()}


def _tail(answer: Score, scored: int) -> Score:
    return Score(answer.log_probs[-scored:], answer.greedy[-scored:])


def _accuracy(scores: Sequence[Score]) -> dict[str, Any]:
    count = len(scores)
    correct = sum(all(answer.greedy) for answer in scores)
    share = correct / count
    error = math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else None
    return {
        "accuracy": significant(share),
        "correct": correct,
        "standard_error": None if error is None else significant(error),
    }
