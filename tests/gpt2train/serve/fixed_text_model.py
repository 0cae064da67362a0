"""A model that generates a fixed text, so that its output is known in advance."""

import dataclasses
import tempfile
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel

from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from tests.gpt2train.convert.model_folders import write_model

SHAPE = Shape(vocab=257, layers=2, heads=2, hidden=64, context=4096)
SURE = 6.0  # so many times the letter that was read last weighs the one that comes next


def write_reciting_model(folder: Path, text: str, end: str = "", *, merge: bool = False) -> None:
    """Write a model folder whose likeliest text is this one, over and over: after n bytes of a prompt, from byte n on.

    Each token is a byte; the character `end` stands for `<|endoftext|>`. With `merge` one more is that of two NULs,
    since llama.cpp takes no tokenizer without merges. The blocks add nothing; the position embedding
    holds the embedding of the next letter.
    """
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    of_byte = dict(zip(range(256), (letters[letter] for letter in _letters()), strict=True))
    of_byte |= dict.fromkeys(end.encode(), 256)
    shape = dataclasses.replace(SHAPE, vocab=SHAPE.vocab + merge)
    model = initialise(GPT2(shape), 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("blocks.") and (".proj." in name or ".down." in name):
                parameter.zero_()
        torch.nn.init.normal_(model.wte.weight, generator=torch.Generator().manual_seed(1))
        following = [of_byte[byte] for byte in (text.encode() * SHAPE.context)[1 : SHAPE.context + 1]]
        model.wpe.weight.copy_(model.wte.weight[following] * SURE)
    with tempfile.TemporaryDirectory() as tokenizer:
        nul = _letters()[0]
        more = {nul + nul: 257} if merge else {}
        save_tokenizer(tokenizer, letters | {END_OF_TEXT: 256} | more, [(nul, nul)] if merge else [])
        write_model(folder, dict(model.state_dict()), shape, Path(tokenizer))


def _letters() -> list[str]:
    """GPT-2's letter of each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]
