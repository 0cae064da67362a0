"""Small training runs and real torchrun jobs, for the tests of the engine."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt2train.checkpoint.manifest import verify
from gpt2train.checkpoint.store import open_tensors
from gpt2train.config import DataSettings, RunConfig, to_toml
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build, layer
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.indexed_writer import IndexedWriter

VOCAB = 300
SECONDS = 200.0  # for one job, on a busy machine
STEPS = 20


def write_tokens(folder: Path) -> Path:
    rng = np.random.Generator(np.random.Philox(5))
    for name, documents in (("train", 60), ("valid", 6)):
        with IndexedWriter(folder / name, "<u2") as writer:
            for _ in range(documents):
                steps = rng.integers(1, 4, size=int(rng.integers(5, 90)))
                writer.add((rng.integers(VOCAB) + np.cumsum(steps)) % VOCAB)
    return folder


def make(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    """A small run: 2 layers, ZeRO 0, two micro-batches on two processes, clipping at work."""
    base = {
        "model": {"layers": 2, "heads": 2, "hidden": 32, "context": 16, "dropout": 0.0},
        "batch": {"micro_batch": 2, "global_batch": 8},
        "optimizer": {"lr": 1e-2, "max_grad_norm": 0.5},
        "schedule": {"warmup": 3, "min_lr": 1e-3},
        "validation": {"interval": 10, "samples": 7},
        "checkpoints": {"interval": 10, "keep": 9},
        "logging": {"interval": 5, "tensorboard": False},
        "precision": "fp32",
        "device": "cpu",
        "steps": STEPS,
        "vocab": VOCAB,
        "output": str(output),
        "data": DataSettings(train=str(tokens / "train"), valid=str(tokens / "valid")).model_dump(),
    }
    return build(RunConfig, base, changes)


def with_lr(config: RunConfig, lr: float) -> RunConfig:
    """A run with a learning rate that its settings would refuse."""
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": lr})})


def write(config: RunConfig) -> str:
    """Write the settings beside the run folder; the path of the file."""
    path = Path(f"{config.output}.toml")
    path.write_text(to_toml(config))
    return str(path)


def start(*torchrun: str, processes: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpt2train.launch", "--parent", str(os.getpid()), "--"]
    command += ["--standalone", "--nproc-per-node", str(processes), *torchrun]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def start_alone(config: str, printed: Path | None = None) -> subprocess.Popen[str]:
    """Start a training of one process, without torchrun; `printed` takes more lines than a pipe that nobody reads."""
    command = [sys.executable, "-m", "gpt2train.train", "--config", config]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if printed is None:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with printed.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(process: subprocess.Popen[str], seconds: float = SECONDS) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def wait_for(
    ready: Callable[[], Any], process: subprocess.Popen[str], pause: float = 0.02, seconds: float = SECONDS
) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(pause)
    raise AssertionError("the condition did not hold in time")


def curve(run: Path | str, key: str = "loss") -> list[float]:
    return [row[key] for row in read_metrics(run)]


def weights(run: Path | str) -> dict[str, torch.Tensor]:
    return load_weights(newest_checkpoint(run))


def wait_until(ready: Callable[[], Any], pause: float = 0.005) -> None:
    end = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < end, "the condition did not hold in time"
        time.sleep(pause)


def load_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The model's parameters by name, unsharded, float32, after the checkpoint was verified."""
    verify(checkpoint)
    return {name: stored.read(torch.float32) for name, stored in open_tensors(checkpoint).items()}


SENTINELS = 20
T5 = {
    "family": "t5",
    "layers": 5,
    "heads": 4,
    "context": 24,
    "options": {"encoder_layers": 3, "decoder_context": 16, "head_dim": 6, "inner": 80, "activation": "gated-gelu"},
}
SPANS = {
    "name": "span_corruption",
    "options": {"noise_density": 0.3, "sentinels": "top", "sentinel_count": SENTINELS, "end_id": VOCAB},
}


def make_t5(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    """A small run: 3 layers in the encoder and 2 in the decoder, several micro-batches on every layout."""
    base = {
        "model": layer(T5, {"options": {"start_id": VOCAB + 1}}),
        "objective": SPANS,
        "batch": {"micro_batch": 1, "global_batch": 8},
        "optimizer": {"max_grad_norm": 0.3},
        "vocab": VOCAB + 2 + SENTINELS,
    }
    return make(tokens, output, **layer(base, changes))
