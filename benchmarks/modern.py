"""Tokens that the modern recipe needs to reach the final validation loss of a GPT-2 with AdamW, at equal parameters.

    python -m benchmarks.modern --output FOLDER [--size small] [--minutes 45]     train what is missing, then print
    python -m benchmarks.modern --output FOLDER --minutes 0                       print what is there

Every training is one of `gpt2train.train` on one thread, on real text (reviews, news, speeches, novels) of which 4 %
are held out. A finished one is a line of FOLDER/results-SIZE.jsonl, and one that was interrupted resumes from its
checkpoint: the command may be stopped at any time.

GPT-2 is trained with AdamW at five learning rates, and with the best one from three seeds. The recipe has the learning
rate of its rule, and is trained to several horizons from the same seeds: the loss of a horizon is that after its own
warm-down. The tokens to GPT-2's loss are interpolated between horizons, linearly in the logarithm of the tokens. The
ablations take one part away at a time, or add value embeddings, at one horizon; value embeddings also at a long one.
"""

import argparse
import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.corpora import texts
from benchmarks.pairs import machine
from gpt2train.config import RunConfig
from gpt2train.config.recipe import training_of
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.tokenize_files import tokenize_files
from gpt2train.model.families import parameter_count
from gpt2train.monitoring.metrics import flops_per_token, read_metrics
from gpt2train.parallel.mesh import DistContext, join
from gpt2train.settings import build, layer
from gpt2train.store.files import read_json_lines, write_atomic
from gpt2train.train import train


@dataclass(frozen=True)
class Size:
    """Sizes of the models and of their training.

    Attributes:
        gpt2: width and heads of GPT-2.
        modern: width, heads and MLP width of the recipe's model, which has two matrices for embedding and output where
            GPT-2 has one, and 3 % fewer parameters.
        steps: steps of GPT-2.
        long: horizon at which value embeddings are added too, as a share of the tokens of GPT-2; 0 for none.
    """

    vocab: int
    layers: int
    context: int
    samples: int
    gpt2: tuple[int, int]
    modern: tuple[int, int, int]
    steps: int
    long: float = 0


SIZES = {
    "micro": Size(1024, 3, 128, 8, (108, 2), (96, 2, 256), 192, 3),  # 0.5M parameters, 0.2M tokens
    "small": Size(2048, 4, 256, 8, (144, 4), (128, 2, 320), 400),  # 1.3M parameters, 0.8M tokens
}
SEEDS = (1, 2, 3)
RATES = (4e-3, 2e-3, 8e-3, 1e-3, 5e-4)  # of the AdamW of GPT-2
HORIZONS = (0.35, 0.2, 0.1)  # of the recipe, as shares of the tokens of GPT-2
ABLATION = 0.35
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of Student's t, by the number of values

Layer = dict[str, Any]


VALUES = "value embeddings, one table more"
OLD_MODEL = "GPT-2's model: learned positions, LayerNorm, GELU, biases, one matrix"


@dataclass(frozen=True)
class Arm:
    """One training: its name, its settings, its horizon as a share of GPT-2's, and its seed."""

    name: str
    settings: Layer
    share: float
    seed: int

    @property
    def key(self) -> str:
        """Name of the run folder, and of the line of the results."""
        words = "-".join("".join(c if c.isalnum() else " " for c in self.name).lower().split())
        return f"{words}-{self.rate:g}-{self.share:g}-{self.seed}"

    @property
    def rate(self) -> float:
        """Peak learning rate."""
        return float(self.settings["optimizer"]["lr"])


@dataclass(frozen=True)
class Bench:
    """Folder and size of a comparison."""

    folder: Path
    size: Size
    name: str

    @property
    def results(self) -> Path:
        """File of the results."""
        return self.folder / f"results-{self.name}.jsonl"

    @property
    def data(self) -> Path:
        """Folder of the tokens."""
        return self.folder / f"data-{self.size.vocab}"

    @property
    def tokens_of_step(self) -> int:
        """Tokens of a step."""
        return self.size.samples * self.size.context

    def common(self) -> Layer:
        """Settings of all arms."""
        size = self.size
        return {
            "batch": {"micro_batch": size.samples, "global_batch": size.samples},
            "model": {"layers": size.layers, "context": size.context, "dropout": 0.0},
            "precision": "fp32",
            "device": "cpu",
            "validation": {"samples": 384, "interval": 100_000},
            "checkpoints": {"interval": 50, "keep": 1, "keep_best": 0},
            "logging": {"interval": 50},
            "vocab": size.vocab,
            "data": {"train": str(self.data / "train"), "valid": str(self.data / "valid")},
        }

    def gpt2_model(self) -> Layer:
        """Settings of the model of GPT-2."""
        width, heads = self.size.gpt2
        return {"heads": heads, "hidden": width}

    def modern_model(self) -> Layer:
        """Settings of the model of the recipe."""
        width, heads, inner = self.size.modern
        chosen = {"activation": "swiglu", "qk_norm": True, "inner": inner}
        return {"family": "llama", "heads": heads, "hidden": width, "options": chosen}

    def gpt2(self, rate: float, seed: int) -> "Arm":
        """GPT-2 with AdamW: half a cosine to 10 %, no dropout."""
        schedule = {"kind": "cosine", "warmup": 0, "warmup_fraction": 0.05, "min_lr": 0.1 * rate}
        optimizer = {"lr": rate, "weight_decay": 0.1}
        return Arm(
            f"GPT-2 {rate:g}", {"model": self.gpt2_model(), "optimizer": optimizer, "schedule": schedule}, 1, seed
        )

    def recipe(self, share: float, seed: int, name: str = "modern", changes: Layer | None = None) -> "Arm":
        """The recipe at a horizon, with the batch of all arms in place of its own, and one part taken away or none."""
        common, modern = self.common()["model"], self.modern_model()
        rules = training_of(common | modern, round(share * self.size.steps) * self.tokens_of_step)
        model = self.gpt2_model() if name == OLD_MODEL else modern
        chosen = {"model": model, "optimizer": rules["optimizer"], "schedule": rules["schedule"]}
        return Arm(name, layer(chosen, changes or {}), share, seed)

    def ablations(self, seed: int, rate: float) -> Iterator["Arm"]:
        """The recipe with one part changed each; AdamW in place of Muon has 1, 2 and 4 times GPT-2's best rate."""
        inner = 3 * self.size.modern[2] // 2  # two matrices of ReLU² have the parameters of three of SwiGLU
        parts: dict[str, Layer] = {
            **{
                f"AdamW in place of Muon, rate {lr:g}": {"optimizer": {"name": "adamw", "lr": lr}}
                for lr in (rate, 2 * rate, 4 * rate)
            },
            OLD_MODEL: {},
            "cosine to 10 % in place of the warm-down": {"schedule": {"kind": "cosine"}},
            "no warm-down": {"schedule": {"kind": "constant"}},
            "no norm of queries and keys": options(qk_norm=False),
            "ReLU² in place of SwiGLU": options(activation="relu2", inner=inner),
            "one matrix for embedding and output": options(tied=True),
            VALUES: options(value_embeddings=1),
        }
        for name, changes in parts.items():
            yield self.recipe(ABLATION, seed, name, changes)

    def long(self, seed: int) -> "tuple[Arm, Arm]":
        """The recipe at the long horizon, without and with value embeddings."""
        share = self.size.long
        return self.recipe(share, seed), self.recipe(share, seed, VALUES, options(value_embeddings=1))

    def config(self, arm: "Arm") -> RunConfig:
        """Complete settings of a run."""
        steps = round(arm.share * self.size.steps)
        own = {"steps": steps, "seed": arm.seed, "output": str(self.folder / f"runs-{self.name}" / arm.key)}
        return build(RunConfig, layer(self.common(), arm.settings, own))

    def prepare(self) -> None:
        """Write the texts, a tokenizer of their own, and the tokens, if they are not there."""
        if (self.data / "valid.idx").exists():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        found = [text for name in ("imdb", "reuters") for text in texts(f"text/{name}_dev", 3000)]
        found += texts("text/speeches_dev")
        found += [text[at : at + 8000] for text in texts("text/novels_dev") for at in range(0, 200_000, 8000)]
        random.Random(0).shuffle(found)
        held = len(found) // 25
        vocab, merges = train_bpe(iter(found[held:]), self.size.vocab)
        lines = "".join(f"{left} {right}\n" for left, right in merges)
        files = {"vocab.json": json.dumps(vocab).encode(), "merges.txt": f"#version: 0.2\n{lines}".encode()}
        for name, part in (("train", found[held:]), ("valid", found[:held])):
            source = self.data / f"{name}.jsonl"
            write_atomic(source, "".join(json.dumps({"text": text}) + "\n" for text in part).encode())
            tokenize_files([source], self.data / name, files, "benchmark", "text", True, 1)

    def finished(self) -> dict[str, Layer]:
        """Results so far, by the key of the arm."""
        rows = read_json_lines(self.results.read_bytes() if self.results.exists() else b"", lambda row: "key" in row)[0]
        return {row["key"]: row for row in rows}

    def train(self, arm: "Arm", ctx: DistContext) -> Layer:
        """Train an arm, or finish its training, and append its result."""
        config = self.config(arm)
        started = time.process_time()
        train(config, ctx)
        losses = [row["valid_loss"] for row in read_metrics(config.output) if row.get("valid_loss") is not None]
        row = {"key": arm.key, "name": arm.name, "share": arm.share, "seed": arm.seed, "rate": arm.rate}
        row |= {"tokens": config.steps * self.tokens_of_step, "loss": losses[-1]}
        row["cpu_seconds"] = round(time.process_time() - started, 1)
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shutil.rmtree(config.output)
        return row

    def best_rate(self) -> float:
        """Learning rate with which GPT-2's loss is lowest, of the first seed."""
        results = self.finished()
        tried = {rate: results.get(self.gpt2(rate, SEEDS[0]).key) for rate in RATES}
        return min((row["loss"], rate) for rate, row in tried.items() if row is not None)[1]

    def wanted(self) -> Iterator["Arm"]:
        """All arms in their order; the later ones depend on the best learning rate of GPT-2."""
        for rate in RATES:
            yield self.gpt2(rate, SEEDS[0])
        best = self.best_rate()
        for seed in SEEDS:
            yield self.gpt2(best, seed)
            for share in HORIZONS:
                yield self.recipe(share, seed)
        for seed in SEEDS:
            yield from self.ablations(seed, best)
        if self.size.long:
            for seed in SEEDS:
                yield from self.long(seed)

    def show(self) -> None:
        """Print what the results say."""
        results = self.finished()
        tried = {rate: results.get(self.gpt2(rate, SEEDS[0]).key) for rate in sorted(RATES)}
        print(
            "GPT-2, loss by learning rate:",
            ", ".join(f"{rate:g} {row['loss']:.4f}" for rate, row in tried.items() if row),
        )
        best, shares = self.best_rate(), []
        if best in (min(RATES), max(RATES)):
            print(f"{best:g} is the lowest or the highest rate that was tried, so that a better one may lie beyond it")
        for seed in SEEDS:
            goal = results.get(self.gpt2(best, seed).key)
            found = [row for share in HORIZONS if (row := results.get(self.recipe(share, seed).key))]
            if goal is None or len(found) < 2:
                continue
            shares.append(crossing([(row["share"], row["loss"]) for row in found], goal["loss"]))
            line = ", ".join(f"{row['share']:.0%} {row['loss']:.4f}" for row in found)
            print(f"seed {seed}: GPT-2 {goal['loss']:.4f}; the recipe {line}: {shares[-1]:.1%} of the tokens")
        if shares:
            print(f"tokens to GPT-2's loss, share of GPT-2's: {interval(shares)}")
        differences: dict[str, list[float]] = {}
        costs: list[float] = []
        for seed in SEEDS:
            whole = results.get(self.recipe(ABLATION, seed).key)
            for arm in self.ablations(seed, best):
                if whole is not None and (row := results.get(arm.key)):
                    differences.setdefault(arm.name, []).append(row["loss"] - whole["loss"])
                    if arm.name == VALUES:
                        costs.append(row["cpu_seconds"] / whole["cpu_seconds"])
        for name, values in differences.items():
            print(f"  {name}: loss {interval(values)} higher at {ABLATION:.0%} of the tokens")
        pairs = [[results.get(arm.key) for arm in self.long(seed)] for seed in SEEDS if self.size.long]
        if values := [added["loss"] - plain["loss"] for plain, added in pairs if plain and added]:
            print(f"  {VALUES}: loss {interval(values)} higher at {self.size.long:.0%} of the tokens")
        if costs:
            print(f"  {VALUES}: {statistics.median(costs):.2f} times the CPU time at {ABLATION:.0%} of the tokens")


def options(**changes: Any) -> Layer:
    """Layer of options of the model."""
    return {"model": {"options": changes}}


def crossing(points: list[tuple[float, float]], loss: float) -> float:
    """Share of the tokens at which a loss is reached, by a line through the nearest points, in log(share).

    Args:
        points: pairs of share and loss, at least two.
        loss: loss to reach.
    """
    points = sorted(points)
    above = [index for index, (_, value) in enumerate(points) if value > loss]
    low = min(max(above, default=0), len(points) - 2)
    (a, first), (b, second) = points[low], points[low + 1]
    return math.exp(math.log(a) + (first - loss) / (first - second) * (math.log(b) - math.log(a)))


def interval(values: list[float]) -> str:
    """Mean and its 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3f} (one seed)"
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} +- {half:.3f} ({len(values)} seeds)"


def main() -> None:
    """Train until the time is over, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of tokens, runs and results")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--minutes", type=float, default=45, help="no further training is started after these")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    bench = Bench(given.output, SIZES[given.size], given.size)
    bench.prepare()
    print(machine())
    added = bench.recipe(1.0, 1, VALUES, options(value_embeddings=1))
    for name, arm in (("GPT-2", bench.gpt2(RATES[0], 1)), ("modern", bench.recipe(1.0, 1)), (VALUES, added)):
        shape = bench.config(arm).shape
        print(f"{name}: {parameter_count(shape):,} parameters, {flops_per_token(shape) / 1e6:.2f} MFLOP a token")
    ctx = join("cpu")
    for arm in bench.wanted():
        if time.monotonic() > end:
            break
        if arm.key not in bench.finished():
            row = bench.train(arm, ctx)
            print(f"{arm.key}: loss {row['loss']:.4f} in {row['cpu_seconds']} s of CPU", flush=True)
    bench.show()


if __name__ == "__main__":
    main()
