"""A small set of token files as `dataprep` writes it, made by the real steps in a second."""

from pathlib import Path
from typing import Any

from gpt2train.store.folder import Folder
from tasks.cloze.step import ClozeSettings, cloze
from tasks.shuffle.step import ShuffleSettings, shuffle
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.tasks.corpus import Inline, documents_of, row

# As parameters of a run: two steps of a model with one layer.
TRAIN: dict[str, Any] = {
    "steps": 2,
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 32},
    "batch": {"micro_batch": 1, "global_batch": 2},
    "schedule": {"warmup": 1},
    "logging": {"interval": 1},
}


def prepare_tokens(root: Path, sentinels: int = 0) -> Path:
    """Write `tokenizer/` and `tokens/` under `root`, with their manifests."""
    rows = [
        row(f"Document {n} says: {'word ' * (n % 9 + 3)}{n}.", split="valid" if n % 5 == 4 else "train")
        for n in range(60)
    ]
    folder = Folder(root)
    with Inline(workers=1) as runner:
        documents = documents_of(folder, rows, per_shard=60)
        words = tokenizer(folder, documents, TokenizerSettings(vocab_size=300, sentinels=sentinels), runner)
        tokenize(folder, documents, words, TokenizeSettings(), runner)
    return root


def prepare_scored_data(root: Path) -> Path:
    """The same with what a model is scored on: held-out documents and the cloze set drawn from them."""
    names = ("Anna", "Bert", "Carl", "Dora", "Emil", "Fritz", "Gerda", "Hans")
    rows = [
        row(
            " ".join(
                f"In chapter {n} the traveller {name} looked for {name} harbour, but nobody knew where {name} saw the "
                "harbour."
                for n in range(12)
            ),
            split="test" if number % 4 == 3 else "valid" if number % 4 == 2 else "train",
        )
        for number, name in enumerate(names)
    ]
    folder = Folder(root)
    with Inline(workers=1) as runner:
        documents = documents_of(folder, rows)
        assert cloze(folder, documents, ClozeSettings(), runner).outputs
        shuffled = shuffle(folder, documents, ShuffleSettings(), runner)
        words = tokenizer(folder, shuffled, TokenizerSettings(vocab_size=300), runner)
        tokenize(folder, shuffled, words, TokenizeSettings(), runner)
    return root
