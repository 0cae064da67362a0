"""The tokenizer of a run, which its settings name by hash alone."""

from pathlib import Path

from gpt2train.config import RunConfig
from gpt2train.data.tokenizer import Tokenizer, load_tokenizer, tokenizer_hash, vocab_size
from gpt2train.data.tokenizer_reader import has_tokenizer


def tokenizer_folders(run: Path, config: RunConfig) -> tuple[Path, ...]:
    """Folders that may hold the tokenizer of a run: in its folder, and next to its data."""
    data = Path(config.data.corpora[0].prefix)  # …/tokens/train/tokens
    return run / "tokenizer", *(parent / "tokenizer" for parent in list(data.parents)[:3])


def find_run_tokenizer(config: RunConfig) -> tuple[Path, Tokenizer] | None:
    """Folder and tokenizer of a run, of its hash, or without one of its size; None if there is none."""
    for folder in tokenizer_folders(Path(config.output), config):
        if not has_tokenizer(folder) or config.tokenizer_hash not in (None, tokenizer_hash(folder)):
            continue
        tokenizer = load_tokenizer(folder)
        if config.tokenizer_hash is not None or vocab_size(tokenizer) == config.vocab:
            return folder, tokenizer
    return None
