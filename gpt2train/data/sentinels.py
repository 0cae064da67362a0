"""Sentinels of span corruption in a tokenizer, under the names of T5, `<extra_id_0>` and so on."""

import re
from itertools import count, takewhile

from gpt2train.data.tokenizer import Tokenizer

SENTINEL = re.compile(r"(<extra_id_\d+>)")


def sentinel_names(tokenizer: Tokenizer) -> list[str]:
    """Return the sentinels that a tokenizer has, from the first on."""
    names = (f"<extra_id_{number}>" for number in count())
    return list(takewhile(lambda name: tokenizer.token_to_id(name) is not None, names))
