"""When to save, and what to keep."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from gpt2train.settings import Settings


class CheckpointSettings(Settings):
    """When to save, and what to keep."""

    every: PositiveInt = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay on the disk."""
    keep_best: NonNegativeInt = 1
    """Checkpoints with the lowest validation loss that stay as well; of those at steps that were validated."""
    asynchronous: bool = True
    """Write while training goes on; it stands still only while the state is copied."""
    init_from: str | None = None
    """What a new run begins with, where it must exist: a run folder or a checkpoint of any layout, a Hugging Face GPT-2
    folder, or a checkpoint of Megatron-LM. A run that has checkpoints of its own goes on from those."""
    start_with: Literal["weights", "optimizer", "position"] = "optimizer"
    """What is taken of a run: the weights; the optimizer's state as well; or also where it stood in steps and data.
    Of what has weights alone, these."""
