"""A tokenizer of as many entries as the small runs have."""

from pathlib import Path

from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer


def write_tokenizer(folder: Path, entries: int) -> Path:
    """Write a tokenizer of single letters and `<|endoftext|>`."""
    folder.mkdir()
    letters = [chr(0x100 + number) for number in range(entries - 1)]
    save_tokenizer(folder, {letter: number for number, letter in enumerate([*letters, END_OF_TEXT])}, [])
    return folder
