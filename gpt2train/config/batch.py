"""Batch size settings."""

from gpt2train.errors import UserError
from gpt2train.settings import NaturalNumber, PositiveNumber, Settings


class RampUp(Settings):
    """Batch size ramp-up (Megatron-LM's `--rampup-batch-size`).

    The global batch is start, start + increment, start + 2 x increment … up to `batch.global_batch`, each size for an
    equal share of `samples`.
    """

    start: PositiveNumber
    """Samples of the first step."""
    increment: PositiveNumber
    """Samples added at each increase."""
    samples: PositiveNumber
    """Samples over which the batch grows to its full size."""


class BatchSettings(Settings):
    """Batch sizes: global_batch = micro_batch x data-parallel processes x gradient_accumulation_steps.

    A value of 0 is computed from the other two. If all three are given, they must agree.
    """

    micro_batch: NaturalNumber = 8
    """Samples per forward pass of a process; determines the activation memory."""
    global_batch: NaturalNumber = 512
    """Samples per optimizer step, over all processes."""
    gradient_accumulation_steps: NaturalNumber = 0
    """Micro-batches that each process accumulates per optimizer step."""
    ramp_up: RampUp | None = None
    """Batch size ramp-up at the start of training; None keeps the batch size constant."""

    def sizes(self, processes: int) -> tuple[int, int, int]:
        """Resolve the batch sizes for a number of data-parallel processes.

        Returns:
            `(micro_batch, global_batch, gradient_accumulation_steps)`.

        Raises:
            UserError: the sizes do not agree; the message gives the product and the nearest valid values.
        """
        micro, whole, accumulation = self._sizes(processes)
        self._check_ramp_up(micro * processes, whole)
        return micro, whole, accumulation

    def _sizes(self, processes: int) -> tuple[int, int, int]:
        micro, whole, accumulation = self.micro_batch, self.global_batch, self.gradient_accumulation_steps
        if [micro, whole, accumulation].count(0) > 1:
            raise UserError("give at least two of batch.micro_batch, global_batch and gradient_accumulation_steps")
        if not whole:
            return micro, micro * processes * accumulation, accumulation
        unit, name = (micro, "micro_batch") if micro else (accumulation, "gradient_accumulation_steps")
        if whole % (unit * processes):
            raise UserError(
                f"batch.global_batch {whole} is not a multiple of {name} {unit} x {processes} data-parallel processes"
                f" = {unit * processes}; set it to {_nearest(whole, unit * processes)}, or change {name}"
            )
        third = whole // (unit * processes)
        if micro and accumulation and accumulation != third:
            raise UserError(
                f"batch.global_batch {whole} is not micro_batch {micro} x {processes} data-parallel processes x "
                f"gradient_accumulation_steps {accumulation} = {micro * processes * accumulation}; set one of the "
                "three to 0"
            )
        return (micro, whole, third) if micro else (third, whole, accumulation)

    def _check_ramp_up(self, unit: int, whole: int) -> None:
        ramp = self.ramp_up
        if ramp is None:
            return
        if ramp.start > whole or (whole - ramp.start) % ramp.increment:
            raise UserError(
                f"batch.ramp_up from {ramp.start} by {ramp.increment} does not reach global_batch {whole}: "
                f"{whole} - {ramp.start} = {whole - ramp.start} is not a multiple of {ramp.increment}"
            )
        for name, value in (("start", ramp.start), ("increment", ramp.increment)):
            if value % unit:
                raise UserError(
                    f"batch.ramp_up.{name} {value} is not a multiple of micro_batch x data-parallel processes = "
                    f"{unit}; set it to {_nearest(value, unit)}"
                )


def _nearest(value: int, unit: int) -> str:
    """Name the multiples of a unit below and above a value."""
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"
