"""Weights of a checkpoint, all in memory."""

from pathlib import Path

import torch
from torch import Tensor

from gpt2train.checkpoint.manifest import verify
from gpt2train.checkpoint.store import open_tensors


def load_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The model's parameters by name, unsharded, float32, after the checkpoint was verified."""
    verify(checkpoint)
    return {name: stored.read(torch.float32) for name, stored in open_tensors(checkpoint).items()}
