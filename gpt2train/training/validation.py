"""Validation loss during a training."""

from gpt2train.data.training_data import TrainingData
from gpt2train.launch.rank_process import StopRequest
from gpt2train.parallel.mesh import any_rank
from gpt2train.training.engine import Engine

CHUNK = 8  # micro-batches between two checks for a stop request


def validate(engine: Engine, data: TrainingData, stop: StopRequest) -> float | None:
    """Mean loss per token over the first samples of the validation file, the same set on every layout.

    Returns:
        The loss, or None if a process received a stop request: the shutdown timeout is then left for the save.
    """
    layout = engine.layout
    count, micro = min(engine.config.validation.samples, data.per_epoch), layout.micro_batch
    # Every process runs the same number of forwards, since a forward can communicate. Samples beyond the set are
    # padding: they fill the batch, and their targets are ignored.
    starts = range(engine.data_rank * micro, _round_up(count, micro * layout.data), micro * layout.data)
    total = 0.0
    for first in range(0, len(starts), CHUNK):
        if any_rank(stop.requested):
            return None
        chunk = starts[first : first + CHUNK]
        batches = [data.batch(range(start, start + micro), until=count).to(engine.ctx.device) for start in chunk]
        total += engine.evaluate(batches)
    return total / data.counted(range(count))


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
