"""Scripts and configs of other systems' trainings, and the settings that they become."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig
from gpt2train.config.foreign_run import convert, nested
from gpt2train.foreign.read import read_foreign
from gpt2train.settings import build, flatten

BASE = {"data": {"train": "x"}, "vocab": 50257, "output": "o"}


def options(text: str) -> dict[str, str | None]:
    """Options of a command line as a table; None for a flag without a value."""
    parts = (part.strip().partition(" ") for part in text.split("--")[1:])
    return {name: value or None for name, _, value in parts}


MEGATRON = options(
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --global-batch-size 8 --lr 0.00015 --train-iters 500000 --lr-decay-iters 320000 "
    "--lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16 "
    "--log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10"
)
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "steps_per_print": 10,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "initial_scale_power": 16},
    "wall_clock_breakdown": True,
}


def words(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name}" if value is None else f"--{name} {value}" for name, value in options.items())


def settings_of(source: str | Path) -> dict[str, Any]:
    """Settings that a source gives, complete and validated."""
    return flatten(build(RunConfig, BASE, nested(convert(read_foreign(str(source))).settings)).model_dump())


def as_line(program: str, options: Mapping[str, Any]) -> str:
    return f"{program} {words(options)}"
