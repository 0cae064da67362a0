"""Tokens and a tokenizer as the data flow leaves them, made in a second: for tests of what comes after."""

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from gpt2train.data.indexed import IndexedWriter
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from tasks.steps import Outcome, Step
from tasks.storage import Folder

VOCAB = 257
# Hours long if nobody stops it, a few milliseconds a step; a checkpoint only where a test asks for one.
ENDLESS: dict[str, Any] = {
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 32, "dropout": 0.1},
    "batch": {"micro_batch": 2, "global_batch": 4},
    "schedule": {"warmup": 10},
    "validation": {"every": 1_000_000, "samples": 1},
    "checkpoints": {"every": 1_000_000},
    "logging": {"every": 1, "tensorboard": False},
    "precision": "fp32",
    "device": "cpu",
    "steps": 1_000_000,
}


def prepare(root: Path) -> Path:
    """Write `tokens/` and `tokenizer/` with their manifests; the root."""
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    (root / "tokenizer").mkdir(parents=True)
    (root / "tokens/train").mkdir(parents=True)
    save_tokenizer(root / "tokenizer", letters | {END_OF_TEXT: VOCAB - 1}, [])
    rng = np.random.Generator(np.random.Philox(11))
    with IndexedWriter(root / "tokens/train/tokens", "uint16") as writer:
        for _ in range(50):
            writer.add([*rng.integers(VOCAB - 1, size=100).tolist(), VOCAB - 1])
    inputs: dict[str, str] = {}
    for name, folder, facts in (("tokenizer", "tokenizer", {}), ("tokenize", "tokens", {"train_tokens": 5050})):
        step = Step(Folder(str(root)), name, version=1, parameters={}, inputs=inputs, folder=folder)
        files = [step.folder.record(file) for file in step.folder.files()]
        step.commit(Outcome(outputs=tuple(files), facts=facts))
    return root
