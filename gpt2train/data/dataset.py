"""Samples of a training or validation by index, and the batches made of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from gpt2train.config import RunConfig
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.data.batch import Batch, StepBatch
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.plugins import load

Indices = Sequence[int] | np.ndarray


class Dataset(ABC):
    """Samples by global index; the sample at an index never changes, so that resuming needs only the index.

    Training reads the indices from 0 on, and repeats nothing before `per_epoch`; the order of each epoch is a matter of
    the dataset. Validation reads the first indices.
    """

    @property
    @abstractmethod
    def per_epoch(self) -> int:
        """Samples until the first one repeats."""

    @abstractmethod
    def batch(self, indices: Indices, until: int | None = None) -> Batch:
        """Read the samples with these indices; all batches of a run have the same shapes.

        Those from `until` on are padding: they repeat the last sample before it, and do not count in the loss.
        """

    @abstractmethod
    def counted(self, indices: Indices) -> int:
        """Count the targets of these samples that are in the loss; at least 1.

        The loss of a step is the sum over its samples, divided by this number. Every process computes it for the whole
        step, also for samples that it does not read.
        """

    def identity(self) -> str | None:
        """Name of the content, such as a hash, independent of its path; a run resumes on the same content only.

        By default None, for the token files that the settings name; they are compared by a hash of their own.
        """
        return None

    def epochs(self, samples: int) -> list[tuple[str, int, float]]:
        """Name, number of tokens and number of epochs of each corpus in this many samples, for the log."""
        return []

    @abstractmethod
    def check(self, part: int = 0, parts: int = 1) -> None:
        """Check one of `parts` equal parts of the data before the first step; raise UserError for what is wrong."""

    def training_batches(
        self, plan: BatchPlan, first: int, steps: int, *, micro: int, rank: int, ranks: int, pin: bool = False
    ) -> Iterator[StepBatch]:
        """Yield the batch of each of the `steps` that remain of a run, on one of `ranks` data-parallel ranks.

        The first sample's global index is the number of samples used so far. `micro` is the number of samples of a
        micro-batch; `pin` copies them to pinned memory, for a GPU.
        """
        for _ in range(steps):
            size = plan.size_at(first)
            starts = range(first + rank * micro, first + size, ranks * micro)
            batches = [self.batch(range(start, start + micro)) for start in starts]
            counted = self.counted(range(first, first + size))
            yield StepBatch(size, counted, [batch.pinned() for batch in batches] if pin else batches)
            first += size


def open_data(config: RunConfig, part: str) -> Dataset | None:
    """Open the data of a run's objective, "train" or "valid"; None if the run has no validation data."""
    opened: Dataset | None = load(OBJECTIVES[config.objective.name].data)(config, part)
    return opened
