"""Logging, tracker and profiler settings."""

from gpt2train.settings import NaturalNumber, PositiveNumber, Settings


class LoggingSettings(Settings):
    """Console lines, trackers and profiler."""

    interval: PositiveNumber = 10
    """Steps between console lines; metrics.jsonl and TensorBoard get every step."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str | None = None
    """Weights & Biases project to log to; wandb must be installed."""
    mlflow: str | None = None
    """MLflow experiment to log to; mlflow must be installed."""
    profile: NaturalNumber = 0
    """Steps to record with torch's profiler, after three warm-up steps; traces go to `profile/`."""
    memory_snapshot: bool = False
    """Record the GPU allocator's history in the profiled steps."""
