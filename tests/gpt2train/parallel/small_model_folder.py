"""A small model folder with a byte-level tokenizer, for the tests of a model over several processes."""

from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.model.causal_lm import Shape
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.models import lively

# 280 of 384 rows are the vocabulary: over four processes the last part, from row 288 on, is padding alone.
SHAPE = Shape(vocab=280, layers=4, heads=4, hidden=32, context=128)


def write_folder(root: Path, shape: Shape = SHAPE) -> Path:
    tokenizer = write_tokenizer(root / "tokenizer", shape.vocab)
    write_model(root / "model", dict(lively(shape).state_dict()), shape, tokenizer)
    return root / "model"


def write_tokenizer(folder: Path, vocab: int) -> Path:
    """Write a byte-level tokenizer with eight merges and unused entries up to `vocab`."""
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges = [("e", "r"), ("t", "h"), ("i", "n"), ("o", "n"), ("a", "n"), ("r", "e"), ("s", "t"), ("e", "n")]
    folder.mkdir()
    entries = letters | {a + b: len(letters) + n for n, (a, b) in enumerate(merges)}
    rest = {f"unused{n}": n for n in range(len(entries), vocab - 1)}
    save_tokenizer(folder, entries | rest | {END_OF_TEXT: vocab - 1}, merges)
    return folder
