"""Small models with random weights, whose answers differ from item to item."""

from pathlib import Path

from gpt2train.data.tokenizer import END_OF_TEXT, load_tokenizer, save_tokenizer
from gpt2train.data.tokenizer_reader import read_files, tables_of
from gpt2train.model.gpt2 import GPT2, Shape
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.models import lively


def small_bpe(bpe: Path, folder: Path, merges: int = 4000) -> Path:
    """The first merges of GPT-2's BPE alone: the harness makes logits of every position, 83 GB in all at 50,257."""
    vocab, pairs = tables_of(read_files(bpe), str(bpe))
    first = {token: number for token, number in vocab.items() if number < 256 + merges}
    folder.mkdir(parents=True)
    save_tokenizer(folder, first | {END_OF_TEXT: len(first)}, pairs[:merges])
    return folder


def write(model: GPT2, folder: Path, bpe: Path) -> Path:
    """The model as a folder that transformers loads."""
    write_model(folder, dict(model.state_dict()), model.shape, bpe)
    return folder


def noisy_model(open_data: Path, folder: Path, context: int) -> tuple[Path, GPT2]:
    """The folder of a small tokenizer, and a model of two layers in evaluation mode."""
    bpe = small_bpe(open_data / "bpe", folder / "bpe")
    shape = Shape(vocab=load_tokenizer(bpe).get_vocab_size(), layers=2, heads=2, hidden=32, context=context)
    return bpe, lively(shape, noise=0.05)
