"""Validation loss during a training."""

from gpt2train.data.dataset import Dataset
from gpt2train.launch.rank_process import StopRequest
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.parallel.mesh import any_rank
from gpt2train.training.engine import Engine

CHUNK = 8  # micro-batches between two checks for a stop request


def validate(engine: Engine, data: Dataset, stop: StopRequest) -> dict[str, float] | None:
    """Mean loss per target over the first samples of the validation data, the same set on every layout.

    Returns:
        The loss as `valid_loss` and the metrics of the objective as `valid_<name>`; or None if a process received a
        stop request: the shutdown timeout is then left for the save.
    """
    layout = engine.layout
    count, micro = min(engine.config.validation.samples, data.per_epoch), layout.micro_batch
    # Every process runs the same number of forwards, since a forward can communicate. Samples beyond the set are
    # padding: they fill the batch, and their targets are ignored.
    starts = range(engine.data_rank * micro, _round_up(count, micro * layout.data), micro * layout.data)
    totals = [0.0] * engine.sums
    for first in range(0, len(starts), CHUNK):
        if any_rank(stop.requested):
            return None
        chunk = starts[first : first + CHUNK]
        batches = [data.batch(range(start, start + micro), until=count).to(engine.ctx.device) for start in chunk]
        totals = [total + part for total, part in zip(totals, engine.evaluate(batches), strict=True)]
    counted = data.counted(range(count))
    metrics = OBJECTIVES[engine.config.objective.name].metrics(totals[1:], counted)
    return {"valid_loss": totals[0] / counted, **{f"valid_{name}": value for name, value in metrics.items()}}


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
