"""Batch sizes over a run: constant, or growing with the samples used (ramp-up).

The next size is a pure function of the number of samples used. A run may resume with another batch, so lengths in
samples become steps by the sizes of the steps that are done, and by the plan from there on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpt2train.config.batch import RampUp


@dataclass(frozen=True)
class BatchPlan:
    """Batch size as a function of the samples used so far (Megatron-LM's `--rampup-batch-size`)."""

    size: int  # samples per step after the ramp-up
    ramp: RampUp | None = None  # ramp-up; None for a constant batch size
    done: tuple[tuple[int, int], ...] = ()  # pairs (steps, samples per step) of the steps that are done, oldest first

    def after(self, done: Sequence[tuple[int, int]]) -> "BatchPlan":
        """Plan of a run that resumes after these steps."""
        return replace(self, done=tuple(done))

    def sizes(self) -> list[int]:
        """List all batch sizes of the plan, smallest first."""
        return [size for _, _, size in self.after(())._phases()]

    def size_at(self, samples: int) -> int:
        """Batch size of the step that starts after this many samples."""
        if self.ramp is None or samples >= self.ramp.samples:
            return self.size
        # Increase k of the ramp-up comes when k / increases of its samples are used.
        increases = (self.size - self.ramp.start) // self.ramp.increment
        return self.ramp.start + samples * increases // self.ramp.samples * self.ramp.increment

    def steps_until(self, samples: int) -> int:
        """Number of steps of the run after which at least this many samples are used."""
        first, begin, size = max(phase for phase in self._phases() if phase[1] <= samples)
        return first + -(-(samples - begin) // size)

    def samples_after(self, steps: int) -> int:
        """Number of samples that the first steps of the run use."""
        first, begin, size = max(phase for phase in self._phases() if phase[0] <= steps)
        return begin + (steps - first) * size

    def _phases(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first step, samples used before it, batch size) for each batch size; the last one never ends."""
        step = samples = 0
        for steps, size in self.done:
            yield step, samples, size
            step, samples = step + steps, samples + steps * size
        while (size := self.size_at(samples)) != self.size:
            yield step, samples, size
            assert self.ramp is not None
            increases = (self.size - self.ramp.start) // self.ramp.increment
            increase = (size - self.ramp.start) // self.ramp.increment
            # The smallest number of samples after the next increase: samples * increases // ramp.samples > increase.
            bound = -(-(increase + 1) * self.ramp.samples // increases)
            steps = -(-(bound - samples) // size)
            step, samples = step + steps, samples + steps * size
        yield step, samples, self.size
