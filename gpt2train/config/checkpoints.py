"""Checkpoint settings."""

from typing import Literal

from gpt2train.settings import NaturalNumber, PositiveNumber, Settings


class CheckpointSettings(Settings):
    """Saving, retention and initialisation from checkpoints."""

    interval: PositiveNumber = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveNumber = 3
    """Number of newest checkpoints to keep."""
    keep_best: NaturalNumber = 1
    """Number of checkpoints with the lowest validation loss to keep in addition; only validated steps count."""
    async_save: bool = True
    """Write in the background; training pauses only while the state is copied."""
    init_from: str | None = None
    """Initial state of a new run: a run folder or a checkpoint of any layout, a Hugging Face GPT-2 folder, or a
    checkpoint of Megatron. A run that has its own checkpoints resumes from those instead."""
    restore: Literal["weights", "optimizer", "full"] = "optimizer"
    """Part of `init_from` to load: the weights, the weights and the optimizer state, or also the position in steps and
    data. Sources with weights only always load the weights; `full` refuses them."""
