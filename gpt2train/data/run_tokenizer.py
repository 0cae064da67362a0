"""The tokenizer of a run, which its settings name by hash alone."""

from pathlib import Path

from gpt2train.config import RunConfig
from gpt2train.data.tokenizer import Tokenizer, load_tokenizer, tokenizer_hash, vocab_size
from gpt2train.data.tokenizer_reader import has_tokenizer


def tokenizer_folders(run: Path, config: RunConfig) -> tuple[Path, ...]:
    """Folders that may hold the tokenizer of a run: in its folder, and next to its data."""
    data = Path(config.data.corpora[0].prefix)  # …/tokens/train/tokens
    return run / "tokenizer", *(parent / "tokenizer" for parent in list(data.parents)[:3])


def without_tokenizer(config: RunConfig) -> str:
    """Return why `find_run_tokenizer` finds none: there is none, or it is of another size or hash."""
    for folder in tokenizer_folders(Path(config.output), config):
        if has_tokenizer(folder):
            size = vocab_size(load_tokenizer(folder))
            if config.tokenizer_hash is None:
                return f"{folder} has {size:,} tokens, the run {config.vocab:,}"
            return f"{folder} is another one than that of the run, by its hash"
    return f"{config.output} and {config.data.corpora[0].prefix} have none beside them"


def find_run_tokenizer(config: RunConfig) -> tuple[Path, Tokenizer] | None:
    """Folder and tokenizer of a run, of its hash, or without one of its size; None if there is none."""
    for folder in tokenizer_folders(Path(config.output), config):
        if not has_tokenizer(folder) or config.tokenizer_hash not in (None, tokenizer_hash(folder)):
            continue
        tokenizer = load_tokenizer(folder)
        if config.tokenizer_hash is not None or vocab_size(tokenizer) == config.vocab:
            return folder, tokenizer
    return None
