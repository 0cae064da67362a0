"""Small corpus of tokens with their index."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt2train.cli import app, run_command
from gpt2train.store.folder import Folder
from tasks.shuffle.step import ShuffleSettings, shuffle
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.tasks.corpus import Inline, documents_of


def make_indexed(place: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write documents, and tokens made of them by two steps, in several shards, with their index."""
    folder = Folder(place)
    with Inline(workers=1) as runner:
        documents = documents_of(folder, rows, per_shard=25)
        shuffled = shuffle(folder, documents, ShuffleSettings(), runner)
        words = tokenizer(folder, shuffled, TokenizerSettings(vocab_size=300), runner)
        tokenize(folder, shuffled, words, TokenizeSettings(shard_tokens=400), runner)
    assert run_command(app, ["data", "index", str(place)]) == 0
    return place
