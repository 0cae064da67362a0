"""What is shown and written while training."""

from pydantic import NonNegativeInt, PositiveInt

from gpt2train.settings import Settings


class LoggingSettings(Settings):
    """What is shown and written while training."""

    every: PositiveInt = 10
    """Steps between lines on the screen; metrics.jsonl and TensorBoard get every step."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str | None = None
    """Project of Weights & Biases to log to, where it is installed."""
    mlflow: str | None = None
    """Experiment of MLflow to log to, where it is installed."""
    profile: NonNegativeInt = 0
    """Steps to record with torch's profiler, after three warm ones; traces go to `profile/`."""
    memory_snapshot: bool = False
    """Record the GPU allocator's history in the profiled steps."""
