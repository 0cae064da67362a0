"""Progress bar of a scoring, on rank 0."""

import contextlib
from collections.abc import Iterator

from gpt2train.evaluate.scoring_request import Report
from gpt2train.store.progress import progress_bar


@contextlib.contextmanager
def rank0_progress(label: str) -> Iterator[Report | None]:
    """Show a progress bar on rank 0."""
    from gpt2train.evaluate.torchrun import is_rank0  # here, since it imports torch (1-2 s)

    with progress_bar(label) if is_rank0() else contextlib.nullcontext() as report:
        yield report
