"""How long training stands still for a checkpoint: written at once, or copied and written in the background.

    python -m benchmarks.checkpoints [--output FOLDER] [--rounds N]

The state is that of a 117m preset (124 million parameters and both moments of AdamW, 1.5 GB of float32), the disk the
one of the output folder. Beside the two stands what cannot be avoided: one copy of the state in memory, and one write
of its bytes with fsync.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.pairs import machine
from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.config import RunConfig
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.mesh import join
from gpt2train.settings import build
from gpt2train.training.train_state import TrainState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="a folder on the disk to be measured; the default is the temporary folder")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=options.output))
    join("cpu")
    try:
        _measure(folder, options.rounds)
    finally:
        shutil.rmtree(folder)
        dist.destroy_process_group()


def _measure(folder: Path, rounds: int) -> None:
    shape = _config(folder, True).shape
    with torch.device("meta"):
        sizes = {name: parameter.shape for name, parameter in GPT2(shape).named_parameters()}
    kinds = ("model.{}", "optim.{}.exp_avg", "optim.{}.exp_avg_sq")
    state = {kind.format(name): torch.rand(size) for name, size in sizes.items() for kind in kinds}
    size = sum(tensor.nbytes for tensor in state.values())
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    for turn in range(rounds + 1):
        for name, async_save in (("at once", False), ("background", True)):
            with CheckpointManager(_config(folder, async_save)) as checkpoints:
                position = TrainState(step=turn + 1, samples=turn + 1, updates=turn + 1, skipped=0)
                timed(f"{name}: stands still", lambda c=checkpoints, p=position: c.save(state, p))  # type: ignore[misc]
                timed(f"{name}: until it is there", checkpoints.wait)
        timed("a copy in memory", lambda: {key: value.clone() for key, value in state.items()})
        timed("a plain write with fsync", lambda: _write(folder / "plain", state))
    print(f"{len(state)} tensors, {size / 1e9:.2f} GB, {rounds} rounds, {machine()}")
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}  # the first one warms up
    for name, median in medians.items():
        print(f"  {name:<30} {median:8.3f} s   ({min(seconds[name][1:]):.3f}–{max(seconds[name][1:]):.3f})")
    ratio = medians["at once: stands still"] / medians["background: stands still"]
    print(f"  training stands still {ratio:.1f}x shorter")


def _config(folder: Path, async_save: bool) -> RunConfig:
    checkpoints = {"async_save": async_save, "keep": 1}
    return build(
        RunConfig,
        {"data": {"train": "unused"}, "vocab": 50257, "output": str(folder / "run"), "checkpoints": checkpoints},
    )


def _write(path: Path, state: dict[str, Tensor]) -> None:
    with path.open("wb") as file:
        for tensor in state.values():
            file.write(tensor.numpy().data)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
