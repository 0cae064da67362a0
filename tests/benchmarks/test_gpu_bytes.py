"""Bytes of a GPU's step by the generated code, which needs torch's CUDA build but no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.speed import PLAN_BOUND
from benchmarks.gpu_bytes.fake_card import missing
from benchmarks.gpu_bytes.kernels import Kernel, Kernels
from benchmarks.gpu_bytes.roofline import CARDS
from benchmarks.gpu_bytes.step import extended
from benchmarks.train import SHAPES
from benchmarks.trainer import Task, config_of
from gpt2train.config import RunConfig
from gpt2train.parallel.layout import Layout
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import pieces
from gpt2train.settings import build

NEEDED = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
# Megabytes that 124M moves per token at a micro-batch of 64, and launches of a step of 262,144 tokens.
EXPECTED = {"fp32": (3.03, 1_817), "bf16": (2.67, 1_729)}
ROWS = (8_192, 16_384)  # of logits at a time
BOUND = 0.02  # one pass more over the residual stream in float32 is 0.037 MB a token


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("stream", EXPECTED)
def test_a_step_moves_no_more_bytes_than_before(tmp_path: Path, stream: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_bytes", "124m:64", "--linear", "6", "--set", f"stream={stream}"]
    file, root = tmp_path / "bytes.json", Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([*command, "--json", str(file)], check=True, env=environment)
    found = json.loads(file.read_text())["124m:64"]
    size, launches = EXPECTED[stream]
    assert found["bytes"] / found["tokens"] / 1e6 == pytest.approx(size, rel=BOUND / 2)
    assert found["launches"] == pytest.approx(launches, rel=BOUND)
    assert found["graph_breaks"] == 0 and found["nonlinearity"] < 1e-3
    shape = SHAPES["124m"][0]
    settings = build(RunConfig, config_of(Task(shape, 64, 4, "cuda", compile=True), {"stream": stream}))
    planned = peak(settings, shape, Layout.of(settings, 1), pieces(settings, shape)[0], 0).device
    assert planned == pytest.approx(found["memory"], rel=PLAN_BOUND)


def test_what_each_further_layer_adds_is_added() -> None:
    once, each = Kernel("forward", "head", "pointwise", 10, 10), Kernel("forward", "block", "pointwise", 1, 2)
    found = extended(Kernels({once: 1, each: 3}), Kernels({once: 1, each: 5}), 12)
    assert found == Kernels({once: 1, each: 13})


def test_a_kernel_takes_the_time_of_its_bytes_or_of_its_flops() -> None:
    rates = CARDS["H100"]
    copy = Kernel("forward", "copy", "pointwise", 1.5e12, 1.5e12)
    assert rates.seconds(copy) == pytest.approx(1, rel=1e-4)
    square = Kernel("forward", "mm", "product", 3e8, 3e8, 2 * 8192**3, (8192,) * 3)
    assert square.flops / rates.seconds(square) == pytest.approx(rates.products, rel=0.01)
    # 192 tiles of 128 x 256 for 132 multiprocessors, or 384 slower ones, against 384.
    few, many = (Kernel("forward", "mm", "product", 1, 1, 2.0 * n * 768 * 50_304, (n, 50_304, 768)) for n in ROWS)
    assert rates.seconds(many) < 1.85 * rates.seconds(few)


def test_what_is_missing_is_said() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_bytes"], capture_output=True, text=True, env=os.environ | {"PATH": ""}
    )
    assert done.returncode == 1 and done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
