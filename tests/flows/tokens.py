"""A small set of tokens as `dataprep` leaves it, made by the real steps in a second: enough to train on."""

from pathlib import Path

from tasks.storage import Folder
from tasks.tokenize import TokenizeSettings, tokenize
from tasks.tokenizer import TokenizerSettings, tokenizer
from tests.tasks.corpus import Inline, documents_of, row

# As parameters of a run: two steps of a model with one layer.
TRAIN = {
    "steps": 2,
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 32},
    "batch": {"micro_batch": 1, "global_batch": 2},
    "schedule": {"warmup": 1},
    "logging": {"every": 1},
}


def prepare_tokens(root: Path) -> Path:
    """Write `tokenizer/` and `tokens/` under `root`, with their manifests."""
    rows = [
        row(f"Document {n} says: {'word ' * (n % 9 + 3)}{n}.", split="valid" if n % 5 == 4 else "train")
        for n in range(60)
    ]
    folder = Folder(root)
    with Inline(workers=1) as runner:
        documents = documents_of(folder, rows, per_shard=60)
        words = tokenizer(folder, documents, TokenizerSettings(vocab_size=300), runner)
        tokenize(folder, documents, words, TokenizeSettings(), runner)
    return root
