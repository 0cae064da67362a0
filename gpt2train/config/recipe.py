"""The modern recipe: a complete training from one number, the depth of the model, by published rules.

The model is merged to a Qwen3 (family llama with QK-norm), which transformers loads; Muon trains the matrices of its
blocks. docs/train/modern.md has the rules and their sources.
"""

import math
from collections.abc import Mapping
from typing import Any

from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.shape import Shape

ASPECT = 64
WIDE_HEADS = 768  # width from which a head has 128 numbers
SMALL_DEPTH = 8
TOKENS_PER_PARAMETER = 20
WARMUP, WARMDOWN = 0.02, 0.65
MAX_DEPTH = 128
MAX_MICRO_BATCH = 16
RECIPES = ("modern",)


def vocabulary(depth: int) -> int:
    """Vocabulary size that the rules assume for a depth."""
    return 50_257 if depth >= SMALL_DEPTH else 4_096


def model_of(depth: int) -> dict[str, Any]:
    """Settings of the group [model] for a depth; UserError if it is out of bounds."""
    if not 1 <= depth <= MAX_DEPTH:
        raise UserError(f"--depth {depth}: the recipe has 1 to {MAX_DEPTH} blocks")
    width = ASPECT * depth
    head = 128 if width >= WIDE_HEADS and width % 128 == 0 else 64
    return {
        "family": "llama",
        "layers": depth,
        "heads": width // head,
        "hidden": width,
        "context": 1024 if depth >= SMALL_DEPTH else 256,
        "dropout": 0.0,
        "options": {"activation": "swiglu", "qk_norm": True, "embedding_norm": True},
    }


def shape_of(model: Mapping[str, Any]) -> Shape:
    """Shape of a model of the recipe, with the vocabulary of its depth."""
    names = ("layers", "heads", "hidden", "context", "family")
    options = tuple(model["options"].items())
    return Shape(vocabulary(model["layers"]), **{name: model[name] for name in names}, options=options)


def counted_parameters(shape: Shape) -> tuple[int, int]:
    """Parameters of the blocks, and of the blocks and the output projection together."""
    blocks = sum(math.prod(size) for name, size in sizes(shape).items() if name.startswith("blocks."))
    return blocks, blocks + shape.vocab * shape.hidden


def horizon(depth: int) -> int:
    """Tokens of the training of a depth."""
    return TOKENS_PER_PARAMETER * counted_parameters(shape_of(model_of(depth)))[1]


def batch_samples(tokens: int, context: int) -> int:
    """Samples of a step."""
    return int(2 ** max(0, round(math.log2(0.58 * tokens**0.571 / context))))


def training_of(model: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Settings of a training but those of the model, for a number of tokens."""
    context, depth = model["context"], model["layers"]
    blocks, _ = counted_parameters(shape_of(model))
    samples = batch_samples(tokens, context)
    steps = max(1, round(tokens / (samples * context)))
    return {
        "steps": steps,
        "precision": "fp32" if depth < SMALL_DEPTH else "bf16",
        # Up to 8 processes without accumulation, or 2 of a small batch; `gpt2train plan` finds what is fastest.
        "batch": {"micro_batch": min(MAX_MICRO_BATCH, max(samples // 8, min(4, samples))), "global_batch": samples},
        "optimizer": {
            "name": "muon",
            "lr": float(f"{1.79 * blocks**-0.713 * tokens**0.307:.1e}"),  # two digits
            "weight_decay": 0.1,
        },
        "schedule": {
            "kind": "wsd",
            "warmup": round(WARMUP * steps),
            "decay_fraction": WARMDOWN,
            "decay_shape": "linear",
            "min_lr": 0.0,
        },
        "validation": {"interval": min(250, max(1, steps // 4))},
        "checkpoints": {"interval": min(500, max(1, steps // 4))},
    }


def modern(depth: int, tokens: int | None = None) -> dict[str, Any]:
    """Settings of a training by the recipe, as a layer for `gpt2train.settings.build`.

    By default the tokens are those of the depth.

    Raises:
        UserError: the depth is out of bounds.
    """
    model = model_of(depth)
    return {"model": model} | training_of(model, tokens or horizon(depth))
