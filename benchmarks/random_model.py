"""A model folder of any published shape with random weights: what speed and correctness of serving need, no more.

    python -m benchmarks.random_model FOLDER [--shape tiny]

The tokenizer has 256 bytes, then pairs of bytes as far as the vocabulary goes, then `<|endoftext|>`. The weights are
larger than those of a fresh model: the likeliest token then leads by so much that rounding does not change it. The end
of a text is never the likeliest.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel

from gpt2train.convert.huggingface import save_model
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.model.shape import Shape

SHAPES = {
    "nano": Shape(vocab=400, layers=2, heads=2, hidden=32, context=128),
    "tiny": Shape(vocab=4096, layers=4, heads=4, hidden=192, context=256),
    "124m": Shape(vocab=50257, layers=12, heads=12, hidden=768, context=1024),
}


def write_random_model(folder: Path, shape: Shape, seed: int = 3, noise: float = 0.1) -> None:
    """Write a model folder; the same bytes for the same arguments."""
    letters = sorted(ByteLevel.alphabet())
    pairs = [(left, right) for left in letters for right in letters][: shape.vocab - len(letters) - 1]
    vocab = {token: i for i, token in enumerate([*letters, *(a + b for a, b in pairs), END_OF_TEXT])}
    model = initialise(GPT2(shape), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
        model.wte.weight[shape.vocab - 1] = 0
    with tempfile.TemporaryDirectory() as tokenizer:
        save_tokenizer(tokenizer, vocab, pairs)
        save_model(folder, LazyWeights(shape, in_memory(dict(model.state_dict()))), Path(tokenizer))


def main() -> None:
    """Write the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    options = parser.parse_args()
    write_random_model(options.folder, SHAPES[options.shape])


if __name__ == "__main__":
    main()
