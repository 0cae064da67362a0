"""Time of a text in `clean.filters.fineweb_edu`, with a model of the size of FineWeb-Edu's and random weights.

    python -m benchmarks.fineweb_edu [--rounds 5]

BERT base with one score: 12 layers of 768, 512 positions. CPU seconds of one thread, median of the rounds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers

from benchmarks.pairs import machine
from tasks.clean.filters.fineweb_edu import score_of
from tasks.clean.filters.registry import LocalModel

WORDS = 30_000
LENGTHS = (50, 200, 510, 5000)  # words of a text


def write_model(folder: Path) -> None:
    """Write a model and a tokenizer that knows the words w0, w1, …"""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(  # type: ignore[attr-defined]
        str(folder / "vocab.txt"), model_max_length=512
    ).save_pretrained(folder)
    shape: Any = transformers.BertConfig(vocab_size=len(vocabulary), num_labels=1)  # type: ignore[call-arg]
    transformers.BertForSequenceClassification(shape).save_pretrained(folder)


def main() -> None:
    """Measure texts of several lengths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        model = LocalModel(folder, "")
        score_of("w1", model)
        print(machine())
        for length in LENGTHS:
            text, taken = " ".join(f"w{number}" for number in range(length)), []
            for _ in range(given.rounds):
                started = time.process_time()
                score_of(text, model)
                taken.append(time.process_time() - started)
            print(f"{length:,} words: {1000 * statistics.median(taken):,.0f} ms")


if __name__ == "__main__":
    main()
