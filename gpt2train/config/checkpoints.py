"""Checkpoint settings."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import NaturalNumber, Place, PositiveNumber, Settings


class CheckpointSettings(Settings):
    """Saving, retention and initialisation from checkpoints."""

    interval: PositiveNumber = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveNumber = 3
    """Number of newest checkpoints to keep."""
    keep_best: NaturalNumber = 1
    """Number of checkpoints with the best validation to keep in addition; only validated steps count."""
    best_metric: str = Field("loss", exclude_if=lambda metric: metric == "loss")
    """Measure of the best validation: loss, the lowest; of a classification also accuracy or f1, the highest."""
    select: Literal["last", "best"] = Field("last", exclude_if=lambda select: select == "last")
    """Checkpoint of a finished run that is merged and scored: that of the last step, or the best one. With best, every
    validated step is saved."""
    async_save: bool = True
    """Write in the background; training pauses only while the state is copied."""
    init_from: Place | None = None
    """Initial state of a new run: a run folder or a checkpoint of any layout, a Hugging Face GPT-2 folder, or a
    checkpoint of Megatron. A run that has its own checkpoints resumes from those instead."""
    restore: Literal["weights", "optimizer", "full"] = "optimizer"
    """Part of `init_from` to load: the weights, the weights and the optimizer state, or also the position in steps and
    data. Sources with weights only always load the weights; `full` refuses them."""

    @model_validator(mode="after")
    def _best_is_kept(self) -> Self:
        if self.select == "best" and not self.keep_best:
            raise ValueError("checkpoints.select best needs keep_best above 0; set keep_best = 1, or select = 'last'")
        return self
