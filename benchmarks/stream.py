"""Validation losses of GPT-2 with a residual stream in bf16 and in float32, in mixed precision.

    python -m benchmarks.stream --output FOLDER [--minutes 45]     train what is missing, then print
    python -m benchmarks.stream --output FOLDER --minutes 0        print what is there

Data, schedule and results as of `benchmarks.modern`: 2,000 steps for each stream, depth and seed, on one thread, and
the command may be stopped at any time. A seed gives both streams the same initial weights and the same order of data.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.modern import SEEDS, Arm, Bench, Layer, Size, interval
from benchmarks.pairs import machine
from gpt2train.model.families import parameter_count
from gpt2train.parallel.mesh import join
from gpt2train.settings import layer

DEPTHS = (2, 6)
STREAMS = ("fp32", "bf16")
RATE = 2e-3


class StreamBench(Bench):
    """Comparison of streams at one depth."""

    def common(self) -> Layer:
        """Settings of all arms, in mixed precision."""
        return layer(super().common(), {"precision": "bf16"})

    def arms(self) -> Iterator[Arm]:
        """All arms, pairs of streams next to each other."""
        for seed in SEEDS:
            for stream in STREAMS:
                settings = layer(self.gpt2(RATE, seed).settings, {"performance": {"stream": stream}})
                yield Arm(f"stream {stream}", settings, 1, seed)

    def show(self) -> None:
        """Print losses of both streams, and their difference for the same seed."""
        found = {key: row["loss"] for key, row in self.finished().items()}
        arms = list(self.arms())
        pairs = [(found.get(wide.key), found.get(half.key)) for wide, half in zip(arms[::2], arms[1::2], strict=True)]
        done = [(wide, half) for wide, half in pairs if wide is not None and half is not None]
        for wide, half in done:
            print(f"  fp32 {wide:.4f}, bf16 {half:.4f}: {half - wide:+.4f}")
        if len(done) > 1:
            spread = statistics.stdev(wide for wide, _ in done)
            print(f"  bf16 less fp32: {interval([half - wide for wide, half in done])}; between seeds {spread:.4f}")


def main() -> None:
    """Train until the time is over, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of tokens, runs and results")
    parser.add_argument("--minutes", type=float, default=45, help="no further training is started after these")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    print(machine())
    ctx = join("cpu")
    for depth in DEPTHS:
        bench = StreamBench(given.output, Size(1024, depth, 128, 2, (64, 2), (64, 2, 192), 2000), f"stream-{depth}")
        bench.prepare()
        arms = list(bench.arms())
        print(f"{depth} blocks, {parameter_count(bench.config(arms[0]).shape):,} parameters", flush=True)
        for arm in arms:
            if arm.key not in bench.finished() and time.monotonic() < end:
                row = bench.train(arm, ctx)
                print(f"{arm.key}: loss {row['loss']:.4f} in {row['cpu_seconds']} s of CPU", flush=True)
        bench.show()


if __name__ == "__main__":
    main()
