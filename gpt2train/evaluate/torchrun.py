"""Processes of torchrun that share an evaluation; rank 0 prints and writes. Only such a job imports torch."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpt2train.evaluate.scoring_request import Report
from gpt2train.launch.process_env import ProcessEnv
from gpt2train.store.progress import progress_bar

if TYPE_CHECKING:
    import torch.distributed as dist

_group: "dist.ProcessGroup | None" = None
_rank = 0


def join_group(env: ProcessEnv) -> None:
    """Share the work with the other processes of the job; scores are exchanged over gloo, wherever the models are."""
    import torch.distributed as dist

    from gpt2train.parallel.mesh import join

    global _group, _rank
    join("cpu", env)
    _group, _rank = dist.group.WORLD, env.rank


def group() -> "dist.ProcessGroup | None":
    """Return the processes that share the work; None for one process, or for a model distributed over several."""
    return _group


def is_rank0() -> bool:
    """Return True if this process prints and writes."""
    return _rank == 0


def print_once(line: str) -> None:
    """Print a line on rank 0."""
    if is_rank0():
        print(line, flush=True)


@contextlib.contextmanager
def rank0_progress(label: str) -> Iterator[Report | None]:
    """Show a progress bar on rank 0."""
    with progress_bar(label) if is_rank0() else contextlib.nullcontext() as report:
        yield report
