"""Prompts as token ids: those of a decoder, which continues a text, and those of an encoder, which ends one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt2train.data.sentinels import SENTINEL
from gpt2train.data.template import encode_prompts
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id, known_ids, unknown_id
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape


def encode_for(shape: Shape, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """Encode prompts for a model: for a decoder alone as `encode_prompts`.

    Prompts of an encoder-decoder end with the token that ends a text, as its training samples do, and may have
    sentinels by name, such as `<extra_id_0>`, for the spans that the decoder is to write.
    """
    if _is_decoder_alone(shape):
        return encode_prompts(tokenizer, prompts)
    return [[*_with_sentinels(tokenizer, prompt), end_of_text_id(tokenizer)] for prompt in prompts]


def unknown_prompts(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[str]:
    """Return the prompts of which the tokenizer knows no part, so that a model reads nothing of them."""
    unknown = unknown_id(tokenizer)
    encoded = encode_ordinary(tokenizer, prompts)
    return [prompt for prompt, ids in zip(prompts, encoded, strict=True) if set(ids) == {unknown}]


def ids_without_token(shape: Shape, tokenizer: Tokenizer, ends: Sequence[int] = ()) -> Tensor | None:
    """Return the ids of a model that stand for no token and are not in `ends`, int64; None if there are none.

    They are rows that pad the embedding, of which training says nothing. An encoder-decoder may know sentinels that
    its tokenizer does not name, so that all of its ids count as tokens.
    """
    unknown = set(range(shape.vocab)).difference(known_ids(tokenizer), ends) if _is_decoder_alone(shape) else set()
    return torch.tensor(sorted(unknown)) if unknown else None


def _is_decoder_alone(shape: Shape) -> bool:
    return len(MODELS[shape.family].lengths(shape)) == 1


def _with_sentinels(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Encode a text in which the names of sentinels are tokens."""
    ids: list[int] = []
    for piece in SENTINEL.split(prompt):
        token = tokenizer.token_to_id(piece) if SENTINEL.fullmatch(piece) else None
        ids += encode_ordinary(tokenizer, [piece])[0] if token is None else [token]
    return ids
