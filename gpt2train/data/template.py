"""Tokens that a tokenizer's template puts before a text, as `<s>` of Llama 2.

The template is the post-processor of a `tokenizer.json`, or `add_bos_token` beside a SentencePiece model. What it puts
after a text (`</s>` of T5, `[SEP]` of BERT) ends the text, so that a text to be continued does not get it.
"""

import json
from collections.abc import Sequence

import tokenizers

from gpt2train.data.sentencepiece_model import SentencePieceTokenizer
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id
from gpt2train.data.tokenizer_reader import ids_before_text


def prefix_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that the template puts before a text; none for GPT-2's tokenizer."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return list(tokenizer.prefix)
    processor = tokenizer.post_processor if isinstance(tokenizer, tokenizers.Tokenizer) else None
    return [] if processor is None else ids_before_text(json.loads(processor.__getstate__()))


def start_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids after which a document begins: those of the template, else the end of the document before it."""
    return prefix_ids(tokenizer) or [end_of_text_id(tokenizer)]


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """Encode prompts, each after the template's tokens; an empty one becomes `start_ids`, which a document follows.

    Special tokens inside a prompt are encoded as text.
    """
    prefix = prefix_ids(tokenizer)
    return [[*prefix, *ids] or start_ids(tokenizer) for ids in encode_ordinary(tokenizer, prompts)]
