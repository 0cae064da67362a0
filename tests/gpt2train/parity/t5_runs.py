"""Small runs of a T5 with span corruption, for the tests of the engine."""

from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig
from gpt2train.settings import layer
from tests.gpt2train.jobs import VOCAB, make

SENTINELS = 20
MODEL = {
    "family": "t5",
    "layers": 5,
    "heads": 4,
    "context": 24,
    "options": {"encoder_layers": 3, "decoder_context": 16, "head_dim": 6, "inner": 80, "activation": "gated-gelu"},
}
OBJECTIVE = {
    "name": "span_corruption",
    "options": {"noise_density": 0.3, "sentinels": "top", "sentinel_count": SENTINELS, "end_id": VOCAB},
}


def make_t5(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    """A small run: 3 layers in the encoder and 2 in the decoder, several micro-batches on every layout."""
    base = {
        "model": layer(MODEL, {"options": {"start_id": VOCAB + 1}}),
        "objective": OBJECTIVE,
        "batch": {"micro_batch": 1, "global_batch": 8},
        "optimizer": {"max_grad_norm": 0.3},
        "vocab": VOCAB + 2 + SENTINELS,
    }
    return make(tokens, output, **layer(base, changes))
