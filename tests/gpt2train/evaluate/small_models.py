"""Small models with random weights, whose answers differ from item to item."""

from pathlib import Path

import torch

from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from tests.gpt2train.evaluate.overfitted_model import small_bpe


def noisy_model(open_data: Path, folder: Path, context: int) -> tuple[Path, GPT2]:
    """The folder of a small tokenizer, and a model of two layers in evaluation mode."""
    bpe = small_bpe(open_data / "bpe", folder / "bpe")
    shape = Shape(vocab=load_tokenizer(bpe).get_vocab_size(), layers=2, heads=2, hidden=32, context=context)
    model = initialise(GPT2(shape), 3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return bpe, model.requires_grad_(False).eval()
