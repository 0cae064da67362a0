"""Perplexity on WikiText by Megatron-LM's rules; does not import torch."""

import math
import re
from collections import Counter

from gpt2train.data.template import encode_prompts
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Evaluation, Scorer
from gpt2train.evaluate.files import decode
from gpt2train.evaluate.metrics import Metric, Result, perplexity, significant
from gpt2train.evaluate.perplexity import checked_stride, notes, unigram_loss, windows
from gpt2train.settings import Settings

EXPONENT_LIMIT = 20  # as in Megatron: exp of at most 20
DEFINITION = (
    "one sequence, detokenised; adjusted = exp(loss * (tokens - 1) / (original words - 1)), "
    f"exponents capped at {EXPONENT_LIMIT} (Megatron-LM WIKITEXT103)"
)


class WikitextSettings(Settings):
    """Settings of the WikiText perplexity."""

    stride: int = 32
    """Tokens by which the window moves; the model's context is fastest and gives the highest perplexity."""


def wikitext_perplexity(scorer: Scorer, text: str, stride: int | None = 32) -> Result:
    """Compute the perplexity of a WikiText file in its tokenised form (`wiki.test.tokens`) as Megatron-LM does.

    The text is detokenised, encoded as one sequence and scored in windows. The number to compare is
    `adjusted_perplexity` = exp(loss * (tokens - 1) / (words - 1)), with the words of the original file.

    Args:
        scorer: model and tokenizer. Its reports count windows.
        text: content of the file.
        stride: tokens by which the window moves (Megatron's `--overlapping-eval`); None for the context.

    Returns:
        JSON-serialisable result, with `notes` on suspicious scores.

    Raises:
        UserError: the text has fewer than two words, or the stride does not fit the context.
    """
    context = scorer.context
    stride = checked_stride(context if stride is None else stride, context)
    words = len(text.strip().split(" "))
    # The template's tokens come first, as in Megatron-LM with a tokenizer of Hugging Face.
    tokens = encode_prompts(scorer.tokenizer, [detokenize_wikitext(text)])[0]
    if words < 2 or len(tokens) < 2:
        raise UserError("the text has fewer than two words; give the WikiText file wiki.test.tokens")
    requests = list(windows(tokens, context, stride))
    log_prob = math.fsum(answer.log_prob for answer in scorer.score(requests))
    loss, unigram = -log_prob / (len(tokens) - 1), unigram_loss(Counter(tokens), scorer.model.shape.vocab)
    return {
        "words": words,
        "tokens": len(tokens),
        "context": context,
        "stride": stride,
        "loss": significant(loss),
        "token_perplexity": perplexity(loss, EXPONENT_LIMIT),
        "adjusted_perplexity": perplexity(loss * (len(tokens) - 1) / (words - 1), EXPONENT_LIMIT),
        "unigram_perplexity": perplexity(unigram, EXPONENT_LIMIT),
        "definition": DEFINITION,
        "notes": notes(loss, unigram),
    }


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


WIKITEXT_EVALUATION = Evaluation(
    help="Score models by perplexity on a WikiText file, adjusted to its words as in Megatron-LM.",
    data="WikiText in its tokenised form (wiki.test.tokens).",
    read=lambda raw, name: decode(raw, name).replace("\r\n", "\n"),  # of a file that passed through Windows
    run=lambda scorer, text, settings: wikitext_perplexity(scorer, text, settings.stride),
    metrics=(
        Metric(
            "adjusted_perplexity",
            DEFINITION,
            scale="log",
            main=True,
            column="wikitext, adjusted",
            axis="WikiText adjusted perplexity",
        ),
        Metric("token_perplexity", "exp(loss), per token of the model's own tokenizer", scale="log"),
        Metric("unigram_perplexity", "per token, by the text's own token counts (add-one)", scale="log"),
    ),
    summary=lambda result: f"words {result['words']:,}, tokens {result['tokens']:,}, stride {result['stride']}",
    settings=WikitextSettings,
    counts={"wikitext_tokens": "tokens"},
)
