"""MRPC with a GPT-2 that is pretrained here: accuracy on held-out pairs beside the majority class, by seed.

    python -m benchmarks.paraphrases --output FOLDER [--steps 4000] [--share 1] [--seeds 3]

Three stages, about an hour on one core; what is finished in FOLDER is not repeated:

1. Pretraining on real text (news, speeches, reviews, novels) in which three of five sentences are followed by an edited
   copy of themselves. A model learns to look for what was said before only where that pays.
2. Two intermediate tasks, as in STILTs (Phang et al., 2018), whose labels cost nothing. First a sentence with a light
   copy of itself or with its successor. Then a sentence with a copy of any strength, alike if their words overlap
   (Jaccard >= 0.45) and different if they do not (< 0.35); this one alone is not learned.
3. Fine-tuning on MRPC with `python -m flows.finetune`, its training pairs in both orders: once from the pretrained
   model, and by seed from stage 2.

The last lines compare with the majority class and with a rule: "same" from an overlap of words that is best on the
training rows.
"""

import argparse
import gzip
import json
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.corpora import DATA, texts
from gpt2train.config import RunConfig
from gpt2train.convert.merge import merge
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.tokenize_files import TokenizeOptions, tokenize_files
from gpt2train.parallel.mesh import join
from gpt2train.settings import build
from gpt2train.store.files import write_atomic
from gpt2train.train import train

Pair = tuple[int, str, str]  # 1 for the same, and the sentences

SOURCES = ("reuters", "speeches", "imdb", "novels")
VOCAB = 4096
CONTEXT = 128
COPIED = 0.6  # share of the sentences that an edited copy follows
ALIKE, DIFFERENT = 0.45, 0.35  # overlap of the words of a pair of the intermediate task
COPIES, OVERLAPS = 16_000, 30_000  # training pairs
TEST_ROWS, VALID_ROWS = 800, 600
MRPC = ("--train.optimizer.lr", "5e-4", "--train.epochs", "3")


def words_of(text: str) -> frozenset[str]:
    """Words of a text in lower case."""
    return frozenset(re.findall(r"\w+", text.lower()))


def overlap(first: str, second: str) -> float:
    """Jaccard similarity of the words of two texts."""
    a, b = words_of(first), words_of(second)
    return len(a & b) / max(1, len(a | b))


def documents() -> list[list[str]]:
    """Sentences of 8 to 32 words, by document; documents with at least two."""
    found = []
    for name in SOURCES:
        for text in texts(f"text/{name}_dev"):
            plain = " ".join(re.sub(r"<[^>]+>", " ", text).split())
            kept = [part for part in re.split(r"(?<=[.!?])\s+", plain) if 8 <= len(part.split()) <= 32]
            if len(kept) >= 2:
                found.append(kept)
    return found


class Editor:
    """Edits of sentences: words left out or replaced, and words moved."""

    def __init__(self, sentences: Iterable[str], seed: int) -> None:
        self.random = random.Random(seed)
        self.words = [word for sentence in sentences for word in sentence.split()]

    def edited(self, sentence: str, strength: float) -> str:
        """A sentence of which a share of the words is left out or replaced.

        Args:
            sentence: at least 8 words.
            strength: share of the words, half of them left out.
        """
        kept = []
        for word in sentence.split():
            chance = self.random.random()
            if chance >= strength:
                kept.append(word)
            elif chance >= strength / 2:
                kept.append(self.random.choice(self.words))
        if len(kept) > 6 and (chance := self.random.random()) < 0.5:
            if chance < 0.35:  # the end of the sentence comes first
                at = self.random.randrange(2, len(kept) - 2)
                kept = kept[at:] + kept[:at]
            else:
                at = self.random.randrange(len(kept) - 3)
                moved = kept[at : at + self.random.randrange(2, 5)]
                del kept[at : at + len(moved)]
                to = self.random.randrange(len(kept) + 1)
                kept[to:to] = moved
        return " ".join(kept)

    def with_copies(self, sentences: list[str]) -> str:
        """A document of which some sentences are followed by an edited copy, a sentence a line."""
        lines = []
        for sentence in sentences:
            lines.append(sentence)
            if self.random.random() < COPIED:
                lines.append(self.edited(sentence, self.random.choice((0.05, 0.15, 0.3))))
        return "\n".join(lines)

    def copies(self, found: list[list[str]], count: int) -> list[Pair]:
        """Pairs of a sentence and a light copy of it, or its successor."""
        made: list[Pair] = []
        for sentences in self.random.sample(found, len(found)):
            for first, follower in pairwise(sentences[:7]):
                copied = self.random.random() < 0.5
                second = self.edited(first, self.random.choice((0.05, 0.15, 0.25))) if copied else follower
                made.append((int(copied), first, second))
        self.random.shuffle(made)
        return made[:count]

    def overlaps(self, found: list[list[str]], count: int) -> list[Pair]:
        """Pairs by the overlap of their words, as many alike as different."""
        same: list[Pair] = []
        other: list[Pair] = []
        for sentences in self.random.sample(found, len(found)):
            for first, follower in pairwise(sentences[:13]):
                copied = self.random.random() < 0.9
                second = self.edited(first, self.random.random()) if copied else follower
                score = overlap(first, second)
                if len(second.split()) < 5 or DIFFERENT <= score < ALIKE:
                    continue
                first, second = self.random.sample((first, second), 2)
                (same if score >= ALIKE else other).append((int(score >= ALIKE), first, second))
        chosen = same[: count // 2] + other[: count // 2]
        self.random.shuffle(chosen)
        return chosen


def mrpc() -> dict[str, list[Pair]]:
    """Rows of MRPC's training file in random order, split into test, valid and train."""
    with gzip.open(DATA / "mrpc/msr_paraphrase_train.txt.gz", "rt", encoding="utf-8-sig", newline="") as file:
        cells = [line.rstrip("\r\n").split("\t") for line in file][1:]
    rows = [(int(row[0]), row[3], row[4]) for row in cells]
    random.Random(1).shuffle(rows)
    end = TEST_ROWS + VALID_ROWS
    return {"test": rows[:TEST_ROWS], "valid": rows[TEST_ROWS:end], "train": rows[end:]}


def rule_accuracy(train: list[Pair], test: list[Pair]) -> float:
    """Share of the test pairs that the overlap of words decides rightly, by the threshold that is best in training."""

    def share(pairs: list[Pair], threshold: float) -> float:
        return statistics.fmean((overlap(a, b) >= threshold) == bool(same) for same, a, b in pairs)

    best = max((step / 100 for step in range(20, 70)), key=lambda threshold: share(train, threshold))
    return share(test, best)


class Bench:
    """Folder of a run of the three stages."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder.resolve()
        self.steps = steps

    def write_pairs(self, name: str, pairs: list[Pair]) -> None:
        """Write JSON lines of a task."""
        lines = [json.dumps({"label": str(same), "first": first, "second": second}) for same, first, second in pairs]
        write_atomic(self.folder / name, "".join(f"{line}\n" for line in lines).encode())

    def write_task(self, name: str, parts: Iterable[str], both_orders: bool) -> None:
        """Write a task file with data files of its name."""
        files = "".join(f'{part} = "{name}-{part}.jsonl"\n' for part in parts)
        columns = 'text = "first"\npair = "second"\nlabel = "label"\nlabels = ["0", "1"]\n'
        head = f'kind = "classification"\nmax_length = {CONTEXT}\nboth_orders = {str(both_orders).lower()}\n'
        write_atomic(self.folder / f"{name}.toml", f"{head}\n[data]\n{files}{columns}".encode())

    def prepare(self, share: float) -> dict[str, list[Pair]]:
        """Write texts, pairs and MRPC, with tokens of the texts.

        Args:
            share: share of the pairs of the intermediate tasks.

        Returns:
            MRPC's rows by part.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        found, rows = documents(), mrpc()
        editor = Editor((sentence for sentences in found for sentence in sentences[:3]), seed=5)
        editor.random.shuffle(found)
        for part, chosen in rows.items():
            self.write_pairs(f"mrpc-{part}.jsonl", chosen)
        self.write_task("mrpc", rows, both_orders=True)
        if not (self.folder / "tokens.idx").exists():
            whole = [editor.with_copies(sentences) for sentences in found]
            read = [*whole[::4], *(f"{first}\n{second}" for _, first, second in rows["train"])]
            vocab, merges = train_bpe(iter(read), VOCAB)
            lines = "".join(f"{left} {right}\n" for left, right in merges)
            files = {"vocab.json": json.dumps(vocab).encode(), "merges.txt": f"#version: 0.2\n{lines}".encode()}
            source = self.folder / "texts.jsonl"
            write_atomic(source, "".join(json.dumps({"text": text}) + "\n" for text in whole).encode())
            tokenize_files([source], self.folder / "tokens", files, TokenizeOptions(append_eod=True))
            pairs = Editor(editor.words, seed=6)
            sizes = [VALID_ROWS + round(share * count) for count in (COPIES, OVERLAPS)]
            made_of = {"copies": pairs.copies(found, sizes[0]), "overlaps": pairs.overlaps(found, sizes[1])}
            for name, made in made_of.items():
                self.write_pairs(f"{name}-valid.jsonl", made[:VALID_ROWS])
                self.write_pairs(f"{name}-train.jsonl", made[VALID_ROWS:])
                self.write_task(name, ("train", "valid"), both_orders=False)
        return rows

    def pretrain(self) -> Path:
        """Folder of the pretrained model: 3 layers of width 128, 1.1 million parameters."""
        model = self.folder / "pretrained"
        if not model.exists():
            settings: dict[str, Any] = {
                "steps": self.steps,
                "precision": "fp32",
                "device": "cpu",
                "vocab": VOCAB,
                "output": str(self.folder / "pretraining"),
                "data": {"train": str(self.folder / "tokens")},
                "model": {"layers": 3, "heads": 4, "hidden": 128, "context": CONTEXT, "dropout": 0.0},
                "batch": {"micro_batch": 16, "global_batch": 16},
                "optimizer": {"name": "muon", "lr": 4e-3, "weight_decay": 0.05},
                "schedule": {"kind": "wsd", "warmup": 50, "decay_fraction": 0.4, "min_lr": 0.0},
                "checkpoints": {"interval": 250, "keep": 1},
            }
            train(build(RunConfig, settings), join("cpu"))
            merge(Path(settings["output"]), model, self.folder / "tokenizer")
        return model

    def tune(self, model: Path, task: str, name: str, *settings: str) -> Path:
        """Run folder of a fine-tuning, with the model of the best epoch."""
        output = self.folder / name
        command = [sys.executable, "-m", "flows.finetune", "--model", str(model), "--output", str(output)]
        command += ["--task", str(self.folder / f"{task}.toml"), "--launch.processes", "1", "--validations", "1"]
        subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
        [run] = (output / "runs").iterdir()
        return run

    def scores(self, run: Path) -> dict[str, float]:
        """Scores of a run on the test rows."""
        found: dict[str, float] = json.loads((run / "task/test.json").read_text())
        return found


def intermediate(rate: float) -> list[str]:
    """Settings of an intermediate task: AdamW's loss did not fall within 400 steps."""
    return ["--train.optimizer.name", "muon", "--train.optimizer.lr", str(rate), "--train.epochs", "1"]


def main() -> None:
    """Run the stages, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of texts, runs and models")
    parser.add_argument("--steps", type=int, default=4000, help="steps of the pretraining, of 2,048 tokens")
    parser.add_argument("--share", type=float, default=1.0, help="share of the intermediate pairs")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    bench = Bench(given.output, given.steps)
    rows = bench.prepare(given.share)
    pretrained = bench.pretrain()
    direct = bench.scores(bench.tune(pretrained, "mrpc", "direct", *MRPC, "--train.seed", "1"))
    copies = bench.tune(pretrained, "copies", "copies", *intermediate(3e-3)) / "model"
    overlaps = bench.tune(copies, "overlaps", "overlaps", *intermediate(2e-3)) / "model"
    tuned = [
        bench.scores(bench.tune(overlaps, "mrpc", f"tuned-{seed}", *MRPC, "--train.seed", str(seed)))
        for seed in range(1, given.seeds + 1)
    ]
    print(f"majority of the {len(rows['test'])} test rows: {direct['majority']:.1%}")
    print(f"overlap of words: {rule_accuracy(rows['train'], rows['test']):.1%}")
    print(f"pretrained, then MRPC: {direct['accuracy']:.1%}")
    values = [scores["accuracy"] for scores in tuned]
    print(f"pretrained, then copies and overlaps, then MRPC: {', '.join(f'{value:.1%}' for value in values)}")
    print(f"mean {statistics.fmean(values):.1%}")


if __name__ == "__main__":
    main()
