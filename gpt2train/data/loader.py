"""The next batches made ready while the model computes.

A thread runs ahead of the loop by a few steps. What it makes is a function of the sample index alone, in the order of
the steps, so nothing depends on how fast it is. numpy lets go of the interpreter's lock while it gathers tokens from
the memory maps, and so does a wait for the disk.
"""

import collections
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from gpt2train.data.batch import Batch
from gpt2train.data.corpora import Corpora

T = TypeVar("T")

AHEAD = 2  # steps in advance: one hiccup of the disk may last a whole step


@contextlib.contextmanager
def prefetch(source: Iterator[T], ahead: int = AHEAD) -> Iterator[Iterator[T]]:
    """The items of an iterator, each made by a thread before it is asked for.

    An error of the source is raised where its item would have come. Leaving the context ends the thread, whatever was
    asked for; it waits for the one item that is being made.

    Args:
        source: used by the thread alone from here on.
        ahead: how many items may wait; 0 makes each when it is asked for, without a thread.
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
    data: Corpora, first: int, micro: int, turns: int, rank: int, ranks: int, pin: bool = False
) -> list[Batch]:
    """One data-parallel rank's micro-batches of a step that begins with the global sample `first`.

    Args:
        micro: samples of a micro-batch.
        turns: micro-batches that each rank adds up.
        rank, ranks: which of the data-parallel ranks, and how many there are.
        pin: copy to pinned memory, for a GPU.
    """
    starts = [first + (turn * ranks + rank) * micro for turn in range(turns)]
    batches = [data.batch(range(start, start + micro)) for start in starts]
    return [batch.pinned() for batch in batches] if pin else batches
