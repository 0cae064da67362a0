"""A tokenizer of as many entries as the small runs have."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from gpt2train.convert.gguf_tokenizer import PATTERNS
from gpt2train.data.tokenizer import END_OF_TEXT, TOKENIZER, save_tokenizer


def write_tokenizer(folder: Path, entries: int) -> Path:
    """Write a tokenizer of single letters and `<|endoftext|>`."""
    folder.mkdir()
    letters = [chr(0x100 + number) for number in range(entries - 1)]
    save_tokenizer(folder, {letter: number for number, letter in enumerate([*letters, END_OF_TEXT])}, [])
    return folder


def split_as_qwen(folder: Path) -> None:
    """Give a tokenizer Qwen's normaliser and pattern."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    pattern = next(pattern for pattern, (name, _) in PATTERNS.items() if name == "qwen2")
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.save(str(folder / TOKENIZER))
