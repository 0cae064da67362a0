"""LAMBADA by its three common definitions: the same weights score 33 % by one and 46 % by another.

* `lambada_openai`, the headline: strict whole word, as in lm-evaluation-harness. The passage is split at its last
  space; the target is that space and the last word, and all its tokens must be the most likely ones. Its perplexity is
  per word: exp(-mean over the passages of the target's log-probability).
* `last_token`: Megatron's default. The target is the last BPE token of the passage, even if it is a part of a word.
* `megatron_strict`: Megatron's `--strict-lambada`. The target is the last word of `text.split()`, encoded separately
  with one space before it; the context is stripped.

A passage in a script without spaces between words, and without a space before its last word, is scored by its last
character in both definitions of words: by the tokens of the whole passage from the first one on that differs from those
of the passage without that character.

Paper: Paperno et al. 2016, "The LAMBADA dataset". GPT-2 124M has accuracy 0.3256 and perplexity 40.06 by
`lambada_openai`, and 0.467 by `last_token`.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from gpt2train.convert.card_scores import LAMBADA_PASSAGES
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Evaluation, Scorer
from gpt2train.evaluate.metrics import Metric, Result, perplexity, significant
from gpt2train.evaluate.passages import last_unit, read_passages, unigram_perplexity
from gpt2train.evaluate.scoring_request import Pair, Score, ScoringRequest, encode_pairs

DEFINITIONS = {
    "lambada_openai": "strict whole word: every token of ' ' + text.split(' ')[-1] is the most likely one, the passage "
    "encoded whole (lm-evaluation-harness lambada_openai); perplexity per word = exp(-mean log p(target))",
    "last_token": "the last BPE token of the passage is the most likely one (Megatron-LM's default)",
    "megatron_strict": "every token of ' ' + text.split()[-1], encoded by itself after the stripped context, is the "
    "most likely one (Megatron-LM --strict-lambada)",
}


BY_CHARACTERS = "; in passages of scripts without spaces between words: the last character"


def openai_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Return contexts and targets as lm-evaluation-harness does; a target begins with a space in any case."""
    parts = (text.rpartition(" ") for text in passages)
    pairs = encode_pairs(tokenizer, [(context, f" {word}") for context, _, word in parts])
    return _with_characters(tokenizer, passages, pairs)


def last_token_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Return contexts and targets by Megatron's default: the target is the last BPE token."""
    return [_pair(tokenizer, ids[:-1], ids[-1:]) for ids in encode_ordinary(tokenizer, passages)]


def strict_pairs(tokenizer: Tokenizer, passages: Sequence[str]) -> list[Pair]:
    """Return contexts and targets by Megatron's `--strict-lambada`, encoded separately."""
    words = [text.split()[-1] for text in passages]
    contexts = [text[: text.rfind(word)].strip() for text, word in zip(passages, words, strict=True)]
    heads = encode_ordinary(tokenizer, contexts)
    targets = encode_ordinary(tokenizer, [f" {word}" for word in words])
    pairs = [_pair(tokenizer, head, target) for head, target in zip(heads, targets, strict=True)]
    return _with_characters(tokenizer, passages, pairs)


def _pair(tokenizer: Tokenizer, context: Sequence[int], target: Sequence[int]) -> Pair:
    """Pair of a context after the template's tokens, never empty, and a target."""
    return Pair((*prefix_ids(tokenizer), *context) or tuple(start_ids(tokenizer)), tuple(target))


def _with_characters(tokenizer: Tokenizer, passages: Sequence[str], pairs: list[Pair]) -> list[Pair]:
    """Replace the pairs of passages that are scored by their last character."""
    units = {number: unit for number, text in enumerate(passages) if (unit := last_unit(text)) is not None}
    texts = {number: passages[number].rstrip() for number in units}
    whole = encode_ordinary(tokenizer, list(texts.values()))
    heads = encode_ordinary(tokenizer, [text.removesuffix(units[number]) for number, text in texts.items()])
    found = list(pairs)
    for number, ids, head in zip(units, whole, heads, strict=True):
        same = next((place for place, (a, b) in enumerate(zip(ids, head, strict=False)) if a != b), len(head))
        found[number] = _pair(tokenizer, ids[:same], ids[same:])
    return found


def evaluate_lambada(scorer: Scorer, passages: Sequence[str]) -> Result:
    """Score passages by the three definitions.

    Args:
        scorer: model and tokenizer. Its reports count sequences; one that several definitions share is computed once.
        passages: texts whose last word is the target.

    Returns:
        JSON-serialisable result: `passages`, `truncated` (passages longer than the model's context), `definitions` with
        `accuracy`, `correct`, `standard_error` (and `perplexity` for `lambada_openai`) and the `definition` of each,
        `unigram_perplexity` of the same targets, and `notes` on suspicious scores.
    """
    context, tokenizer = scorer.context, scorer.tokenizer
    pairs = {
        "lambada_openai": openai_pairs(tokenizer, passages),
        "last_token": last_token_pairs(tokenizer, passages),
        "megatron_strict": strict_pairs(tokenizer, passages),
    }
    for number, targets in enumerate(zip(*pairs.values(), strict=True), 1):
        if not all(pair.target for pair in targets):
            raise UserError(f"passage {number}: the tokenizer has no token for its last word; remove the passage")
    by_characters = BY_CHARACTERS if any(last_unit(text) is not None for text in passages) else ""
    truncated = sum(len(pair.context) + len(pair.target) > context + 1 for pair in pairs["lambada_openai"])
    requests = {name: [pair.request(context) for pair in items] for name, items in pairs.items()}
    scores = _score_once(scorer, requests)
    definitions = {
        name: {**_accuracy(scores[name]), "definition": text + ("" if name == "last_token" else by_characters)}
        for name, text in DEFINITIONS.items()
    }
    mean = sum(answer.log_prob for answer in scores["lambada_openai"]) / len(passages)
    definitions["lambada_openai"]["perplexity"] = perplexity(-mean)
    result: Result = {
        "passages": len(passages),
        "truncated": truncated,
        "headline": "lambada_openai",
        "definitions": definitions,
        "unigram_perplexity": significant(unigram_perplexity(passages)),
    }
    return {**result, "notes": notes(result)}


def notes(result: Result) -> list[str]:
    """Return notes for the reader: an unusual number of passages, and likely causes of implausible scores."""
    found_notes = []
    if result["passages"] != LAMBADA_PASSAGES:
        found_notes.append(
            f"{result['passages']:,} passages, LAMBADA's test set has {LAMBADA_PASSAGES:,}: compare these figures with "
            "others of this file only"
        )
    headline = result["definitions"]["lambada_openai"]
    if headline["correct"] == 0:
        found_notes.append(
            f"none of {result['passages']} last words is right: likely causes are too few training tokens (a few "
            "million are not enough), many epochs over little text (compare training and validation loss), or another "
            "tokenizer than the training's"
        )
    if headline["perplexity"] > result["unigram_perplexity"]:
        found_notes.append(
            f"the word perplexity {headline['perplexity']:.4g} is above {result['unigram_perplexity']:.4g}, that of "
            "word counts alone: likely causes are another kind of text than the training's, a wrong tokenizer, or "
            "damaged weights; compare the validation loss"
        )
    return found_notes


def _score_once(scorer: Scorer, requests: dict[str, list[ScoringRequest]]) -> dict[str, list[Score]]:
    """Score each distinct sequence once, with its longest target; shorter targets are its tail.

    The three definitions mostly differ in the target's length only, so this saves almost two thirds of the work.
    """
    longest: dict[tuple[int, ...], int] = {}
    for request in chain.from_iterable(requests.values()):
        longest[request.tokens] = max(longest.get(request.tokens, 0), request.scored)
    answers = scorer.score([ScoringRequest(tokens, scored) for tokens, scored in longest.items()])
    by_tokens = dict(zip(longest, answers, strict=True))

    def tail(request: ScoringRequest) -> Score:
        answer = by_tokens[request.tokens]
        return Score(answer.log_probs[-request.scored :], answer.greedy[-request.scored :])

    return {name: list(map(tail, items)) for name, items in requests.items()}


def _accuracy(scores: Sequence[Score]) -> dict[str, Any]:
    count, correct = len(scores), sum(all(answer.greedy) for answer in scores)
    share = correct / count
    error = significant(math.sqrt(share * (1 - share) / (count - 1))) if count > 1 else None
    return {"accuracy": significant(share), "correct": correct, "standard_error": error}


def _accuracy_metric(name: str, **options: Any) -> Metric:
    """Return the metric of one of the definitions."""
    path, error = (("definitions", name, key) for key in ("accuracy", "standard_error"))
    return Metric(f"{name} accuracy", DEFINITIONS[name], "share", path, error, **options)


LAMBADA_EVALUATION = Evaluation(
    help="Score models on LAMBADA by its three common definitions.",
    data='Passages, one JSON object {"text": "…"} per line (lambada_test.jsonl).',
    read=read_passages,
    run=lambda scorer, passages, _: evaluate_lambada(scorer, passages),
    metrics=(
        _accuracy_metric("lambada_openai", main=True, column="lambada_openai", axis="LAMBADA accuracy, %"),
        Metric(
            "lambada_openai perplexity",
            "per last word, see above",
            scale="log",
            path=("definitions", "lambada_openai", "perplexity"),
            main=True,
            column="perplexity",
            axis="LAMBADA perplexity",
        ),
        _accuracy_metric("last_token"),
        _accuracy_metric("megatron_strict"),
        Metric(
            "word counts' perplexity",
            "last words by the counts of the passages' other words (add-one)",
            scale="log",
            path=("unigram_perplexity",),
        ),
    ),
    summary=lambda result: f"passages {result['passages']:,}, truncated {result['truncated']:,}",
    counts={"passages": "passages", "truncated_passages": "truncated"},
)
