"""Special tokens of span corruption: sentinels under the names of T5, `<extra_id_0>` and so on, start and end."""

import re
from dataclasses import dataclass
from itertools import count, takewhile

from gpt2train.data.tokenizer import Tokenizer, end_of_text_id, padding_id
from gpt2train.errors import UserError
from gpt2train.model.objectives import SpanCorruptionOptions

SENTINEL = re.compile(r"(<extra_id_\d+>)")
TOP = "top"


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids that inputs and targets have besides the text."""

    sentinels: tuple[int, ...]  # tokens that stand for spans, in their order
    start: int  # token with which the decoder begins; also fills what is not read
    end: int  # token that ends input and target


def sentinel_names(tokenizer: Tokenizer) -> list[str]:
    """Return the sentinels that a tokenizer has, from the first on."""
    names = (f"<extra_id_{number}>" for number in count())
    return list(takewhile(lambda name: tokenizer.token_to_id(name) is not None, names))


def needs_tokenizer(options: SpanCorruptionOptions) -> bool:
    """Return True if the special tokens are looked up in a tokenizer."""
    return options.sentinels != TOP or options.end_id < 0


def find_special_tokens(
    options: SpanCorruptionOptions, start_id: int, vocab: int, tokenizer: Tokenizer | None, source: object
) -> SpecialTokens:
    """Find the special tokens of a training.

    Args:
        options: options of the objective.
        start_id: option of the model; -1: the padding token of the tokenizer.
        vocab: size of the model's vocabulary.
        tokenizer: tokenizer; None only if it is not needed.
        source: its folder, for error messages.

    Raises:
        UserError: a sentinel does not exist, or a token is outside of the vocabulary.
    """
    amount = options.sentinel_count
    end = options.end_id if options.end_id >= 0 or tokenizer is None else end_of_text_id(tokenizer)
    start = start_id if start_id >= 0 else end if tokenizer is None else padding_id(tokenizer)
    if options.sentinels == TOP:
        sentinels = tuple(range(vocab - 1, vocab - 1 - amount, -1))
    else:
        assert tokenizer is not None
        names = [options.sentinels.replace("{}", str(number)) for number in range(amount)]
        sentinels = tuple(_sentinel(tokenizer.token_to_id(name), name, source) for name in names)
    for name, token in (("sentinel", min(sentinels)), ("end_id", end), ("start_id", start)):
        if not 0 <= token < vocab:
            raise UserError(
                f"the {name} {token} is outside the vocabulary of {vocab} tokens; correct objective.options"
            )
    if options.sentinels == TOP and not {start, end}.isdisjoint(sentinels):
        raise UserError(
            f"the last {amount} of {vocab} tokens would be sentinels, but among them are the tokens that begin or end "
            "a text; give a tokenizer with sentinels, or a smaller objective.options.sentinel_count"
        )
    return SpecialTokens(sentinels, start, end)


def _sentinel(token: int | None, name: str, source: object) -> int:
    if token is None:
        raise UserError(
            f"the tokenizer {source} has no token {name} to stand for a span; give one with sentinels (for a trained "
            'one tokenizer.sentinels = 100), name others in objective.options.sentinels, or set it to "top"'
        )
    return token
