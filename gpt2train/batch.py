"""Sizes of the batches over a run: one size always, or a batch that grows with the samples used.

Pure functions of the number of samples used, so that a run that goes on from a checkpoint needs no state for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpt2train.config import RampUp


@dataclass(frozen=True)
class BatchPlan:
    """Batch sizes by the samples used so far (Megatron-LM's `--rampup-batch-size`).

    Attributes:
        size: samples of a step after the ramp-up.
        ramp: how the batch grows to it; None for one size always.
    """

    size: int
    ramp: RampUp | None = None

    def sizes(self) -> list[int]:
        """Every size there is, the smallest first."""
        return [size for _, _, size in self._stretches()]

    def size_at(self, samples: int) -> int:
        """Samples of the step that begins after this many samples."""
        if self.ramp is None or samples >= self.ramp.samples:
            return self.size
        # Part k of the ramp-up begins when k / parts of its samples are used.
        parts = (self.size - self.ramp.start) // self.ramp.increment
        return self.ramp.start + samples * parts // self.ramp.samples * self.ramp.increment

    def samples_after(self, steps: int) -> int:
        """Samples used by the first steps of a run."""
        first, begin, size = max(stretch for stretch in self._stretches() if stretch[0] <= steps)
        return begin + (steps - first) * size

    def steps_until(self, samples: int) -> int:
        """Steps after which at least this many samples are used."""
        first, begin, size = max(stretch for stretch in self._stretches() if stretch[1] <= samples)
        return first + -(-(samples - begin) // size)

    def _stretches(self) -> Iterator[tuple[int, int, int]]:
        """Stretches of steps of one size: first step, samples used before it, size; the last one has no end."""
        step = samples = 0
        while (size := self.size_at(samples)) != self.size:
            yield step, samples, size
            assert self.ramp is not None
            parts = (self.size - self.ramp.start) // self.ramp.increment
            part = (size - self.ramp.start) // self.ramp.increment
            # The first number of samples that is in the next part: samples * parts // ramp.samples > part.
            bound = -(-(part + 1) * self.ramp.samples // parts)
            steps = -(-(bound - samples) // size)
            step, samples = step + steps, samples + steps * size
        yield step, samples, self.size
