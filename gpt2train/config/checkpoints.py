"""When to save, and what to keep."""

from pydantic import NonNegativeInt, PositiveInt

from gpt2train.settings import Settings


class CheckpointSettings(Settings):
    """When to save, and what to keep."""

    every: PositiveInt = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay on the disk."""
    keep_best: NonNegativeInt = 1
    """Checkpoints with the lowest validation loss that stay as well."""
    asynchronous: bool = True
    """Write while training goes on; it stands still only while the state is copied."""
    start_from: str | None = None
    """A checkpoint, or a run folder, of any layout whose weights and optimizer begin this run; it must exist."""
