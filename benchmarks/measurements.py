"""Cost of what a run measures of itself: steps with metrics, phases, ranks and time left beside steps without, in turn.

    python -m benchmarks.measurements                     tiny and 6 x 384, one and two processes
    python -m benchmarks.measurements --shape tiny --ranks 1 --steps 200

One run of the trainer switches the measurements off and on again every 10 steps: rows of `metrics.jsonl`, log lines
every 10 steps, phases, slowest rank and energy, time left. The gradient norm stays, since clipping needs it. A step is
one sample on each process, the shortest there is. Times are of the processor, of rank 0. Two figures: the median step
with them over the median step without, whose noise is that of the steps, and the time inside of the measurements as a
share of a step, which has next to none. Expected: below 1 %.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.pairs import machine

BLOCK = 10  # steps with and without the measurements in turn
VOCAB = 4096
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"layers": 4, "heads": 4, "hidden": 192, "context": 256},
    "6x384": {"layers": 6, "heads": 6, "hidden": 384, "context": 256},
}


class Switch:
    """Measurements that are on in every second block of steps, and the time of the steps and of the measurements."""

    def __init__(self, steps: int) -> None:
        self.on, self.inside = True, 0.0
        self.times: dict[bool, list[float]] = {True: [], False: []}
        self._steps, self._since = steps, time.process_time()

    def step_ended(self, step: int) -> None:
        """Count a step, but the first one of a block, and switch at the end of a block."""
        now = time.process_time()
        if step > BLOCK and step % BLOCK != 1:
            self.times[self.on].append(now - self._since)
        if step <= BLOCK:
            self.inside = 0.0
        self.on = step // BLOCK % 2 == 0 or step >= self._steps - 1
        self._since = time.process_time()

    def counted(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call something that measures."""
        began = time.process_time()
        try:
            return call(*arguments, **keywords)
        finally:
            self.inside += time.process_time() - began


def work(folder: Path, shape: str, steps: int) -> None:
    """Train as a rank of a job, and print the figures on rank 0."""
    from gpt2train.config import RunConfig
    from gpt2train.monitoring.run_logger import RunLogger
    from gpt2train.parallel.mesh import join
    from gpt2train.settings import build
    from gpt2train.train import train
    from gpt2train.training.phases import PhaseTimer

    ctx = join("cpu")
    model = SHAPES[shape] | {"dropout": 0.0}
    batch = {"micro_batch": 1, "global_batch": ctx.world}
    never = steps + 1
    config = build(
        RunConfig,
        {"model": model, "batch": batch, "steps": steps, "schedule": {"warmup": 1}, "precision": "fp32"},
        {"device": "cpu", "vocab": VOCAB, "output": str(folder / "run"), "data": {"train": str(folder / "train")}},
        {"logging": {"interval": BLOCK, "tensorboard": False}, "checkpoints": {"interval": never}},
    )
    switch = Switch(steps)
    row, write, phase, begin = RunLogger.row, RunLogger.write, PhaseTimer.__call__, PhaseTimer._begin

    def measured_row(self: RunLogger, state: Any, stats: Any, **keywords: Any) -> dict[str, Any]:
        switch.step_ended(state.step)
        found = {"step": state.step, "loss": stats.loss}
        return dict(switch.counted(row, self, state, stats, **keywords)) if switch.on else found

    def measured_write(self: RunLogger, line: dict[str, Any], last: bool, sample: Any = None) -> None:
        if switch.on:
            switch.counted(write, self, line, last, sample)

    def measured_phase(self: PhaseTimer, name: str) -> Any:
        return phase(self, name) if switch.on else contextlib.nullcontext()

    def measured_begin(self: PhaseTimer, name: str) -> Any:
        return switch.counted(begin, self, name) if switch.on else None

    patches: dict[tuple[type, str], Callable[..., Any]] = {
        (RunLogger, "row"): measured_row,
        (RunLogger, "write"): measured_write,
        (PhaseTimer, "__call__"): measured_phase,
        (PhaseTimer, "_begin"): measured_begin,
    }
    with contextlib.ExitStack() as stack:
        for (place, name), replacement in patches.items():
            stack.enter_context(mock.patch.object(place, name, replacement))
        train(config, ctx)
    if ctx.is_rank0:
        measured = sum(1 for step in range(BLOCK + 1, steps + 1) if step // BLOCK % 2 == 0)
        figures = {"on": switch.times[True], "off": switch.times[False], "inside": switch.inside / measured}
        (folder / "figures.json").write_text(json.dumps(figures))


def run(shape: str, ranks: int, steps: int) -> dict[str, Any]:
    """Start a job and return its figures."""
    from gpt2train.data.indexed import write_index
    from gpt2train.launch.process_env import STORE

    with tempfile.TemporaryDirectory() as name:
        folder, length = Path(name), (steps * ranks + 1) * SHAPES[shape]["context"] + 1
        np.random.default_rng(1).integers(0, VOCAB, length, dtype=np.uint16).tofile(folder / "train.bin")
        write_index(folder / "train.idx", [length], "<u2")
        job = []
        for rank in range(ranks):
            places = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, STORE: folder}
            environment = os.environ | {key: str(value) for key, value in places.items()} | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "benchmarks.measurements", "--work", name, "--shape", shape]
            job.append(subprocess.Popen([*command, "--steps", str(steps)], env=environment))
        codes = [process.wait() for process in job]
        if any(codes):
            sys.exit("a rank failed")
        return dict(json.loads((folder / "figures.json").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="by default all")
    parser.add_argument("--ranks", type=int, help="by default one, and two")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work), options.shape, options.steps)
        return
    print(machine())
    for shape in [options.shape] if options.shape else SHAPES:
        for ranks in [options.ranks] if options.ranks else (1, 2):
            found = run(shape, ranks, options.steps)
            on, off = statistics.median(found["on"]), statistics.median(found["off"])
            print(
                f"{shape}, {ranks} processes: {1e3 * on:.1f} ms with, {1e3 * off:.1f} ms without, "
                f"ratio {on / off:.3f}; inside {1e6 * found['inside']:.0f} us, {found['inside'] / off:.2%} of a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
