"""How many samples make an optimizer step."""

from pydantic import NonNegativeInt, PositiveInt

from gpt2train.errors import UserError
from gpt2train.settings import Settings


class RampUp(Settings):
    """A global batch that grows with the samples used (Megatron-LM's `--rampup-batch-size`).

    start, start + increment, start + 2 x increment … up to the global batch, each for an equal share of `samples`.
    """

    start: PositiveInt
    """Samples of the first step."""
    increment: PositiveInt
    """Samples that are added each time."""
    samples: PositiveInt
    """Samples over which the batch grows; after them it is whole."""


class BatchSettings(Settings):
    """global_batch = micro_batch x data-parallel processes x accumulation; any two give the third.

    A 0 is computed from the other two; where all three are given they must agree.
    """

    micro_batch: NonNegativeInt = 8
    """Samples a process works on at once; bounds the memory."""
    global_batch: NonNegativeInt = 512
    """Samples of one optimizer step, over all processes."""
    accumulation: NonNegativeInt = 0
    """Micro-batches that each process adds up before a step."""
    ramp_up: RampUp | None = None
    """A smaller batch in the beginning; None has the same one always."""

    def sizes(self, processes: int) -> tuple[int, int, int]:
        """`(micro_batch, global_batch, accumulation)` on this many data-parallel processes.

        Raises:
            UserError: the numbers do not go together; the message gives the sum and the nearest values that do.
        """
        micro, whole, turns = self._sizes(processes)
        self._check_ramp_up(micro * processes, whole)
        return micro, whole, turns

    def _sizes(self, processes: int) -> tuple[int, int, int]:
        micro, whole, turns = self.micro_batch, self.global_batch, self.accumulation
        if [micro, whole, turns].count(0) > 1:
            raise UserError("of batch.micro_batch, batch.global_batch and batch.accumulation two are needed")
        if not whole:
            return micro, micro * processes * turns, turns
        unit, name = (micro, "micro_batch") if micro else (turns, "accumulation")
        if whole % (unit * processes):
            raise UserError(
                f"batch.global_batch {whole} is not a multiple of {name} {unit} x {processes} data-parallel processes"
                f" = {unit * processes}; set it to {_nearest(whole, unit * processes)}, or change {name}"
            )
        third = whole // (unit * processes)
        if micro and turns and turns != third:
            raise UserError(
                f"batch.global_batch {whole} is not micro_batch {micro} x {processes} data-parallel processes x "
                f"accumulation {turns} = {micro * processes * turns}; leave one of the three at 0"
            )
        return (micro, whole, third) if micro else (third, whole, turns)

    def _check_ramp_up(self, unit: int, whole: int) -> None:
        ramp = self.ramp_up
        if ramp is None:
            return
        if ramp.start > whole or (whole - ramp.start) % ramp.increment:
            raise UserError(
                f"batch.ramp_up from {ramp.start} by {ramp.increment} does not arrive at global_batch {whole}: "
                f"{whole} - {ramp.start} = {whole - ramp.start} is not a multiple of {ramp.increment}"
            )
        for name, value in (("start", ramp.start), ("increment", ramp.increment)):
            if value % unit:
                raise UserError(
                    f"batch.ramp_up.{name} {value} is not a multiple of micro_batch x data-parallel processes = "
                    f"{unit}; set it to {_nearest(value, unit)}"
                )


def _nearest(value: int, unit: int) -> str:
    """The multiples of a unit on both sides of a value."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"
