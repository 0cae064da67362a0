"""Loss of a training with products in 8 bits beside bfloat16 and float32: same text, model, seeds and steps, on a CPU.

    python -m benchmarks.fp8 --output FOLDER [--steps 400] [--seeds 1 2]

GPT-2 of 3 blocks and width 128 on real text (that of `benchmarks.modern`), with AdamW. It shows what the rounding does
to the loss of a small model; a CPU computes fp8 slowly, so that it shows nothing of speed. Trainings that are finished
are not repeated.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.modern import SIZES, Bench
from benchmarks.pairs import machine
from gpt2train.config import RunConfig
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext, join
from gpt2train.settings import build, layer
from gpt2train.train import train

ARMS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp8 tensorwise": {"precision": "bf16", "performance": {"fp8": "tensorwise"}},
    "fp8 rowwise": {"precision": "bf16", "performance": {"fp8": "rowwise"}},
}
MODEL = {"layers": 3, "heads": 4, "hidden": 128}
LAST = 10  # steps whose mean training loss is shown


def config(bench: Bench, arm: str, seed: int, steps: int) -> RunConfig:
    """Complete settings of a run."""
    own = {
        "model": MODEL,
        "optimizer": {"lr": 2e-3},
        "schedule": {"warmup": min(10, steps - 1), "min_lr": 2e-4},
        "steps": steps,
        "seed": seed,
        "output": str(bench.folder / f"{arm}-{seed}-{steps}".replace(" ", "-")),
    }
    return build(RunConfig, layer(bench.common(), ARMS[arm], own))


def losses(run: RunConfig, ctx: DistContext) -> tuple[float, float]:
    """Training loss of the last steps, and validation loss, which is in bfloat16 but for float32."""
    found = read_metrics(run.output) if (Path(run.output) / "metrics.jsonl").exists() else []
    if len(found) < run.steps:
        train(run, ctx)
        found = read_metrics(run.output)
    return statistics.fmean(row["loss"] for row in found[-LAST:]), found[-1]["valid_loss"]


def main() -> None:
    """Train what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of tokens and runs")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    bench = Bench(given.output, SIZES["micro"], "micro")
    bench.prepare()
    print(machine())
    ctx = join("cpu")
    print(f"{given.steps} steps of {bench.tokens_of_step:,} tokens; training loss of the last {LAST}, validation loss")
    for seed in given.seeds:
        found = {arm: losses(config(bench, arm, seed, given.steps), ctx) for arm in ARMS}
        for arm, (training, valid) in found.items():
            print(
                f"seed {seed}, {arm:<16} {training:.4f} {valid:.4f}, against bf16 "
                f"{training - found['bf16'][0]:+.4f} {valid - found['bf16'][1]:+.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
