"""State of AdamW in a stored training, and its hyperparameters in the terms of Megatron's optimizer and schedule."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpt2train.checkpoint.manifest import CheckpointManifest, read_manifest
from gpt2train.checkpoint.store import open_tensors
from gpt2train.config import TrainSettings
from gpt2train.model.lazy_weights import LazyTensor

DECAY_STYLES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "inverse_sqrt": "inverse-square-root",
    "wsd": "WSD",
}


@dataclass(frozen=True)
class OptimizerState:
    """State of AdamW, to be read tensor by tensor, and the place of the training."""

    tensors: Mapping[str, LazyTensor]
    """`<parameter>.exp_avg`, `<parameter>.exp_avg_sq` and `<parameter>.step`, by this project's names."""
    updates: int  # updates done, AdamW's step
    iteration: int  # training steps done
    samples: int  # samples used
    group: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters that both parameter groups share: lr, betas, eps."""
    weight_decay: float = 0.0  # weight decay of the group that has one
    schedule: Mapping[str, Any] = field(default_factory=dict)
    """State of Megatron's learning rate schedule; empty if it is not known."""


def step_tensor(updates: int) -> LazyTensor:
    """AdamW's step of one parameter, a float32 scalar."""
    return LazyTensor((), lambda dtype: torch.tensor(float(updates)))


def checkpoint_optimizer(checkpoint: Path) -> OptimizerState | None:
    """Open the optimizer state of one of this project's checkpoints; None if it has weights only."""
    tensors = open_tensors(checkpoint, "optim.")
    if not tensors:
        return None
    manifest = read_manifest(checkpoint)
    position = manifest.position
    updates = max(int(stored.read(torch.float32)) for name, stored in tensors.items() if name.endswith(".step"))
    known = _hyperparameters(manifest)
    return OptimizerState(tensors, updates, position.step or updates, position.samples, **known)


def _hyperparameters(manifest: CheckpointManifest) -> dict[str, Any]:
    """Translate the settings of a run; schedules of Megatron count samples."""
    known = {key: value for key, value in manifest.config.items() if key in TrainSettings.model_fields}
    try:
        settings = TrainSettings.model_validate(known)
    except ValueError:  # of a converted checkpoint, which has the sizes only, or of another version
        return {}
    if "optimizer" not in known:
        return {}
    optimizer, schedule, position = settings.optimizer, settings.schedule, manifest.position
    per_step, decay_steps = position.samples / max(position.step, 1), schedule.decay_steps or settings.steps
    # A warm-up in tokens is left to the command line of Megatron-LM.
    warmup = schedule.warmup or round(schedule.warmup_fraction * decay_steps)
    return {
        "group": {"lr": optimizer.lr, "betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.eps},
        "weight_decay": optimizer.weight_decay,
        "schedule": {
            "max_lr": optimizer.lr,
            "min_lr": schedule.min_lr,
            "lr_warmup_steps": round(warmup * per_step),
            "num_steps": round(position.updates * per_step),
            "lr_decay_style": DECAY_STYLES[schedule.kind],
            "lr_decay_steps": round(decay_steps * per_step),
            "start_wd": optimizer.weight_decay,
            "end_wd": optimizer.weight_decay,
            "wd_incr_style": "constant",
            "wd_incr_steps": round(settings.steps * per_step),
        },
    }
