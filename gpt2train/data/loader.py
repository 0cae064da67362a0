"""Prefetching of batches in a thread while the model computes.

The thread is a few steps ahead of the training loop. Batches are a function of the sample index alone and come in the
order of the steps, so nothing depends on the thread's speed. numpy releases the GIL while it gathers tokens from the
memory maps, and so does waiting for the disk.
"""

import collections
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from gpt2train.config.batch_plan import BatchPlan
from gpt2train.data.batch import Batch, StepBatch
from gpt2train.data.training_data import TrainingData

T = TypeVar("T")

PREFETCH_STEPS = 2  # so that a stall of the disk may last a whole step


@contextlib.contextmanager
def prefetch(source: Iterator[T], ahead: int = PREFETCH_STEPS) -> Iterator[Iterator[T]]:
    """Iterate over the items of an iterator, which a thread prepares in advance.

    An error of the source is raised in place of its item. Leaving the context ends the thread, after the item that is
    being prepared.

    Args:
        source: iterator, to be used only by the thread from now on.
        ahead: maximum number of prepared items; 0 prepares each item on request, without a thread.
    """
    if not ahead:
        yield source
        return
    end = object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        waiting = collections.deque(thread.submit(next, source, end) for _ in range(ahead))

        def items() -> Iterator[T]:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(thread.submit(next, source, end))
                yield cast(T, item)

        yield items()
    finally:
        thread.shutdown(cancel_futures=True)


def step_batches(
    data: TrainingData, first: int, micro: int, accumulation: int, rank: int, ranks: int, pin: bool = False
) -> list[Batch]:
    """Micro-batches of one data-parallel rank in a step.

    Args:
        data: training data.
        first: global index of the first sample of the step.
        micro: samples per micro-batch.
        accumulation: micro-batches per rank.
        rank: data-parallel rank.
        ranks: number of data-parallel ranks.
        pin: copy to pinned memory, for a GPU.
    """
    starts = [first + (index * ranks + rank) * micro for index in range(accumulation)]
    batches = [data.batch(range(start, start + micro)) for start in starts]
    return [batch.pinned() for batch in batches] if pin else batches


def training_batches(
    data: TrainingData, plan: BatchPlan, first: int, steps: int, *, micro: int, rank: int, ranks: int, pin: bool = False
) -> Iterator[StepBatch]:
    """Yield the batch of each remaining step of a run, on one data-parallel rank.

    Args:
        data: training data.
        plan: batch sizes over the run.
        first: global index of the first sample, which is the number of samples used so far.
        steps: number of remaining steps.
        micro: samples per micro-batch.
        rank: data-parallel rank.
        ranks: number of data-parallel ranks.
        pin: copy to pinned memory, for a GPU.
    """
    for _ in range(steps):
        size = plan.size_at(first)
        micro_batches = step_batches(data, first, micro, size // (micro * ranks), rank, ranks, pin)
        yield StepBatch(size, data.counted(range(first, first + size)), micro_batches)
        first += size
