"""A small trained run: byte-level tokenizer, the text of the licence, two steps of a one-layer GPT-2."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

import gpt2train
from gpt2train.config import TrainSettings, run_config, to_toml
from gpt2train.data.tokenizer import END_OF_TEXT, encode_ordinary, load_tokenizer, save_tokenizer, tokenizer_hash
from gpt2train.settings import build
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.indexed_writer import IndexedWriter

VOCAB = 257
SETTINGS = {
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 64, "dropout": 0.0},
    "batch": {"micro_batch": 2, "global_batch": 2},
    "steps": 2,
    "schedule": {"warmup": 1},
    "precision": "fp32",
    "device": "cpu",
}


@dataclass(frozen=True)
class TrainedRun:
    """Paths of a trained run, in an output folder as the pipeline writes it."""

    root: Path
    run: Path
    tokenizer: Path


def train_small_run(root: Path, text: str) -> TrainedRun:
    """Train under `root`: `tokenizer/`, `tokens/train/tokens.bin`, `runs/small/`."""
    tokenizer, run, prefix = root / "tokenizer", root / "runs/small", root / "tokens/train/tokens"
    for folder in (tokenizer, run, prefix.parent):
        folder.mkdir(parents=True)
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    save_tokenizer(tokenizer, letters | {END_OF_TEXT: VOCAB - 1}, [])
    with IndexedWriter(prefix, "uint16") as writer:
        for ids in encode_ordinary(load_tokenizer(tokenizer), text.split("\n\n")):
            writer.add([*ids, VOCAB - 1])
    config = run_config(
        build(TrainSettings, SETTINGS),
        train=str(prefix),
        valid=None,
        vocab=VOCAB,
        tokenizer_hash=tokenizer_hash(tokenizer),
        output=str(run),
    )
    (run / "config.toml").write_text(to_toml(config))
    run_ranks(Path(gpt2train.__file__).with_name("train.py"), "--config", str(run / "config.toml"), processes=1)
    return TrainedRun(root, run, tokenizer)
