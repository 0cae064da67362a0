"""Tokens that the modern recipe needs to reach the final validation loss of a GPT-2 with AdamW, at equal parameters.

    python -m benchmarks.modern --output FOLDER [--size small] [--minutes 45]     train what is missing, then print
    python -m benchmarks.modern --output FOLDER --minutes 0                       print what is there
    python -m benchmarks.modern --output FOLDER --ablations                       the parts of the recipe too

Every training is one of `gpt2train.train` on one thread, on real text (reviews, news, speeches, novels) of which 4 %
are held out. A finished one is a line of FOLDER/results-SIZE.jsonl, and one that was interrupted resumes from its
checkpoint: the command may be stopped at any time.

Both sides have the recipe's warm-down to 0, and learning rates chosen in the same way: by the mean loss of the same
three seeds, among rates a factor of two apart, until the best one lies between worse ones. The recipe is tuned for each
horizon, the loss of which is that after its own warm-down. The tokens to GPT-2's loss are interpolated between two
horizons, linearly in the logarithm of the tokens. The ablations take one part away at a time, or add value embeddings,
at one horizon and the rate of the recipe's rule; value embeddings also at a long one.
"""

import argparse
import json
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.corpora import texts
from benchmarks.pairs import machine
from gpt2train.config import RunConfig
from gpt2train.config.recipe import WARMDOWN, training_of
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.tokenize_files import TokenizeOptions, tokenize_files
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
        rate: learning rate of the AdamW of GPT-2 with which the search begins.
        long: horizon at which value embeddings are added too, as a share of the tokens of GPT-2; 0 for none.
    """

    vocab: int
    layers: int
    context: int
    samples: int
    gpt2: tuple[int, int]
    modern: tuple[int, int, int]
    steps: int
    rate: float = 4e-3
    long: float = 0


SIZES = {
    "micro": Size(1024, 3, 128, 8, (108, 2), (96, 2, 256), 192, long=3),  # 0.5M parameters, 0.2M tokens
    "small": Size(2048, 4, 256, 8, (144, 4), (128, 2, 320), 400),  # 1.3M parameters, 0.8M tokens
    "nano": Size(1024, 3, 128, 2, (64, 2), (56, 2, 136), 2000, rate=2e-3),  # 0.2M parameters, 0.5M tokens
}
SEEDS = (1, 2, 3)
HORIZONS = (0.2, 0.1, 0.4, 0.8, 0.05)  # of the recipe, as shares of the tokens of GPT-2, in the order of the search
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
            "checkpoints": {"interval": 250, "keep": 1, "keep_best": 0},
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
        chosen = {"activation": "swiglu", "qk_norm": True, "embedding_norm": True, "inner": inner}
        return {"family": "llama", "heads": heads, "hidden": width, "options": chosen}

    def gpt2(self, rate: float, seed: int) -> "Arm":
        """GPT-2 with AdamW, the warm-down of the recipe, a longer warm-up and no dropout."""
        down = {"kind": "wsd", "decay_fraction": WARMDOWN, "decay_shape": "linear", "min_lr": 0.0}
        schedule = down | {"warmup": 0, "warmup_fraction": 0.05}
        optimizer = {"lr": rate, "weight_decay": 0.1}
        return Arm(
            f"GPT-2 {rate:g}", {"model": self.gpt2_model(), "optimizer": optimizer, "schedule": schedule}, 1, seed
        )

    def rules(self, share: float) -> Layer:
        """Settings of the training that the recipe has for a horizon."""
        tokens = round(share * self.size.steps) * self.tokens_of_step
        return training_of(self.common()["model"] | self.modern_model(), tokens)

    def recipe(self, share: float, seed: int, name: str = "modern", changes: Layer | None = None) -> "Arm":
        """The recipe at a horizon, with the batch of all arms in place of its own, and one part taken away or none."""
        rules = self.rules(share)
        model = self.gpt2_model() if name == OLD_MODEL else self.modern_model()
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
            "half a cosine to 0 in place of the linear warm-down": {"schedule": {"kind": "cosine"}},
            "no warm-down": {"schedule": {"kind": "constant"}},
            "no norm of queries and keys": options(qk_norm=False),
            "no norm of the embedding": options(embedding_norm=False),
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
            tokenize_files([source], self.data / name, files, TokenizeOptions(append_eod=True))

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

    def gpt2_search(self) -> "Search":
        """Search for the learning rate of GPT-2."""
        return Search(self, self.gpt2, self.size.rate)

    def recipe_search(self, share: float) -> "Search":
        """Search for the learning rate of the recipe at a horizon, from that of its rule."""
        rule = self.recipe(share, SEEDS[0])

        def arm(rate: float, seed: int) -> Arm:
            return replace(rule, settings=layer(rule.settings, {"optimizer": {"lr": rate}}), seed=seed)

        return Search(self, arm, rule.rate)

    def searches(self) -> "Iterator[tuple[float, Search]]":
        """Searches of the recipe, by horizon, until one has a higher and one a lower loss than GPT-2."""
        goal, found = statistics.fmean(self.gpt2_search().losses()), dict[float, float]()
        for share in HORIZONS:
            higher = [at for at, loss in found.items() if loss > goal]
            lower = [at for at, loss in found.items() if loss <= goal]
            if (higher and lower) or any(share < at for at in higher) or any(share > at for at in lower):
                continue
            search = self.recipe_search(share)
            yield share, search
            found[share] = statistics.fmean(search.losses())

    def wanted(self, ablations: bool) -> Iterator["Arm"]:
        """All arms in their order; the later ones depend on the results of those before."""
        yield from self.gpt2_search().arms()
        for _, search in self.searches():
            yield from search.arms()
        if ablations:
            for seed in SEEDS:
                yield self.recipe(ABLATION, seed)
                yield from self.ablations(seed, self.gpt2_search().best)
            for seed in SEEDS if self.size.long else ():
                yield from self.long(seed)

    def show(self) -> None:
        """Print what the results say."""
        search = self.gpt2_search()
        print(f"GPT-2, mean loss by learning rate: {search}")
        if not search.is_bracketed:
            return
        goals, points = search.losses(), dict[float, list[float]]()
        print(f"GPT-2: loss {interval(goals)}")
        for share, search in self.searches():
            print(f"the recipe at {share:.0%} of the tokens, mean loss by learning rate: {search}")
            if not search.is_bracketed:
                return
            points[share] = search.losses()
            print(f"the recipe at {share:.0%}: loss {interval(points[share])}")
        if len(points) > 1:
            lines = [[(share, losses[at]) for share, losses in points.items()] for at in range(len(SEEDS))]
            shares = [crossing(line, goal) for line, goal in zip(lines, goals, strict=True)]
            print(f"tokens to GPT-2's loss, share of GPT-2's: {interval(shares)}")
        self.show_ablations()

    def show_ablations(self) -> None:
        """Print what the parts of the recipe are worth."""
        results, best = self.finished(), self.gpt2_search().best
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


@dataclass(frozen=True)
class Search:
    """Search for the learning rate with the lowest mean loss of all seeds, among rates a factor of two apart.

    Attributes:
        arm: training for a rate and a seed.
        center: rate to begin with, together with its half and its double.
    """

    bench: Bench
    arm: Callable[[float, int], Arm]
    center: float

    def __str__(self) -> str:
        """Mean loss of each rate."""
        return ", ".join(f"{rate:g} {loss:.4f}" for rate, loss in sorted(self.means().items()))

    def arms(self) -> Iterator[Arm]:
        """Trainings in their order; those of a further rate come when all before are finished."""
        while not self.is_bracketed:
            found = self.means()
            best = min(found, key=found.__getitem__, default=self.center)
            rate = next(rate for rate in (best, best / 2, 2 * best) if rate not in found)
            for seed in SEEDS:
                yield self.arm(rate, seed)

    def losses(self) -> list[float]:
        """Losses of the seeds at the best rate."""
        results, best = self.bench.finished(), self.best
        return [results[self.arm(best, seed).key]["loss"] for seed in SEEDS]

    def means(self) -> dict[float, float]:
        """Mean loss by rate, of the rates whose seeds are all finished."""
        results = self.bench.finished()
        found = {}
        for rate in (self.center * 2.0**power for power in range(-8, 9)):
            rows = [results.get(self.arm(rate, seed).key) for seed in SEEDS]
            losses = [row["loss"] for row in rows if row is not None]
            if len(losses) == len(SEEDS):
                found[rate] = statistics.fmean(losses)
        return found

    @property
    def best(self) -> float:
        """Best rate so far."""
        found = self.means()
        return min(found, key=found.__getitem__)

    @property
    def is_bracketed(self) -> bool:
        """True if the best rate lies between two that were tried."""
        found = self.means()
        best = min(found, key=found.__getitem__, default=0.0)
        return bool(found) and {best / 2, 2 * best} <= found.keys()


def options(**changes: Any) -> Layer:
    """Layer of options of the model."""
    return {"model": {"options": changes}}


def crossing(points: Sequence[tuple[float, float]], loss: float) -> float:
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
    parser.add_argument("--ablations", action="store_true", help="train the recipe without each of its parts too")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    bench = Bench(given.output, SIZES[given.size], given.size)
    bench.prepare()
    print(machine())
    added = bench.recipe(1.0, 1, VALUES, options(value_embeddings=1))
    for name, arm in (("GPT-2", bench.gpt2(bench.size.rate, 1)), ("modern", bench.recipe(1.0, 1)), (VALUES, added)):
        shape = bench.config(arm).shape
        print(f"{name}: {parameter_count(shape):,} parameters, {flops_per_token(shape) / 1e6:.2f} MFLOP a token")
    ctx = join("cpu")
    for arm in bench.wanted(given.ablations):
        if time.monotonic() > end:
            break
        if arm.key not in bench.finished():
            row = bench.train(arm, ctx)
            print(f"{arm.key}: loss {row['loss']:.4f} in {row['cpu_seconds']} s of CPU", flush=True)
    bench.show()


if __name__ == "__main__":
    main()
