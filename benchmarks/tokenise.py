"""Tokenising: our encoder and the whole step beside `tokenizers`, on one core and the same texts.

    GPT2TRAIN_TEST_DATA=… python -m benchmarks.tokenise

Expected: the encoder is at least 20 times as fast as `encode_batch_fast` in one process, token for token equal.
"""

import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process on one core, as a worker of the step runs

import numpy as np
from tokenizers import Tokenizer

from benchmarks.pairs import compare, machine
from gpt2train.data.encoder import FastEncoder, PlainEncoder, Texts, disagreement, with_end
from gpt2train.data.tokenizer import end_of_text_id, load_tokenizer
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, commit_rows
from tasks.core.step import Step
from tasks.tokenize.settings import TokenizeSettings
from tasks.tokenize.step import tokenize
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import tokenizer

FILES = ("text/imdb_dev.jsonl.gz", "text/reuters_dev.jsonl.gz", "text/speeches_dev.jsonl.gz")
ROUNDS = 8  # the first warms up
PER_SHARD = 4096


class Here(Runner):
    """Runs every batch in this process."""

    def batches(self, *args, **options):  # type: ignore[no-untyped-def]
        return super().batches(*args, **{**options, "where": "thread", "at_once": 1})


def texts_of(data: Path) -> list[str]:
    """Texts of the real corpora."""
    found = []
    for name in FILES:
        with gzip.open(data / name, "rt", encoding="utf-8") as file:
            found += [json.loads(line)["text"] for line in file]
    return found


def encoders(texts: list[str], data: Path) -> None:
    """The kernels alone."""
    words = load_tokenizer(data / "bpe")
    assert isinstance(words, Tokenizer)
    fast, plain = FastEncoder(words), PlainEncoder(words)
    end = end_of_text_id(words)
    parts = [texts[number::ROUNDS] for number in range(ROUNDS)]
    print(f"documents with other tokens: {len(disagreement(fast, plain, Texts.of(parts[0])))} of {len(parts[0]):,}")
    columns = [Texts.of(part) for part in parts]
    size = sum(len(column.data) for column in columns) / 1e6 / ROUNDS
    # Texts that it has not seen, round by round, as a worker meets them; a new encoder would have no word cached.
    fresh, ours, theirs = FastEncoder(words), iter(columns), iter(parts)
    contestants = {
        "gigatoken to a token file": lambda: with_end(fresh(next(ours)), end, np.dtype("<u2")),
        "encode_batch_fast": lambda: words.encode_batch_fast(next(theirs), add_special_tokens=False),
    }
    compare("Encoding", "MB", size, contestants, rounds=ROUNDS - 1, clock=time.process_time)
    fresh = FastEncoder(words)
    started = time.process_time()
    fresh(columns[0])
    print(f"the first {size:.1f} MB of a new encoder: {size / (time.process_time() - started):,.0f} MB/s")


def corpus(root: Folder, texts: list[str]) -> Manifest:
    """A finished step that holds the texts."""
    step = Step(root, "clean", version=1, parameters={}, inputs={})
    rows = [
        {"id": f"{number:032x}", "url": f"http://example.org/{number}", "text": text, "split": "train"}
        for number, text in enumerate(texts)
    ]
    cuts = [rows[start : start + PER_SHARD] for start in range(0, len(rows), PER_SHARD)]
    return step.commit(
        Outcome.total(commit_rows(step.folder, f"part-{n:05d}.parquet", cut, [], CLEAN) for n, cut in enumerate(cuts))
    )


def step(texts: list[str], data: Path) -> None:
    """The whole step, from Parquet to committed token files, by either engine."""
    with tempfile.TemporaryDirectory() as place:
        root = Folder(place)
        documents = corpus(root, texts)
        with Here(workers=1) as runner:
            words = tokenizer(root, None, TokenizerSettings(name="gpt2", folder=str(data / "bpe")), runner)

            def run(engine: str) -> None:
                shutil.rmtree(Path(place) / "tokens", ignore_errors=True)
                tokenize(root, documents, words, TokenizeSettings.model_validate({"engine": engine}), runner)

            size = sum(len(text.encode()) for text in texts) / 1e6
            engines = {f"engine = {name}": lambda name=name: run(name) for name in ("auto", "tokenizers")}
            compare("The whole step, the check of the corpus included", "MB", size, engines, 3, time.process_time)


if __name__ == "__main__":
    folder = Path(os.environ.get("GPT2TRAIN_TEST_DATA", "../shared/data"))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[-1]])
    print(machine())
    everything = texts_of(folder)
    if "step" not in sys.argv[1:]:
        encoders(everything, folder)
    step(everything, folder)
