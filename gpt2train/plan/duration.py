"""Expected seconds of a step: a roofline of computing and communicating, to order layouts by, not to promise."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.metrics import flops_per_token
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.stages import head_weight
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import FP32, HALF
from gpt2train.plan.parameters import Piece, parameters

# Shares of a step's FLOPs that activation checkpointing computes again: full repeats the forward pass, a third of all.
AGAIN = {"none": 0.0, "selective": 0.05, "full": 1 / 3}
ADAMW = 28  # bytes that a parameter moves in an update: weight, gradient, two means read; weight, two means written
SMALL = 1024  # tokens of a micro-batch, per tensor-parallel rank, at which a GPU reaches half of what it can
HIDDEN = 0.5  # share of the computing behind which communication of the data-parallel processes can hide


@dataclass(frozen=True)
class Duration:
    """Seconds of one step.

    Attributes:
        compute: matrix products of the slowest rank.
        bubble: waiting for the pipeline to fill and to drain.
        tensor: all-reduces of tensor parallelism, between which nothing else can be done.
        data: gradients and gathered parameters, as far as they do not hide behind computing.
        pipeline: activations from stage to stage.
        update: AdamW, and with offload the way to the CPU and back.
    """

    compute: float
    bubble: float
    tensor: float
    data: float
    pipeline: float
    update: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.bubble + self.tensor + self.data + self.pipeline + self.update


def step_time(
    settings: TrainSettings, shape: Shape, layout: Layout, pieces: list[Piece], hardware: Hardware
) -> Duration:
    """Expected time of one optimizer step on a layout."""
    p = settings.parallel
    width = FP32 if settings.precision == "fp32" else HALF
    tokens = layout.global_batch * shape.context
    flops = tokens * flops_per_token(shape) * (1 + AGAIN[p.activation_checkpointing])
    # The slowest stage sets the pace; the head weighs as several layers.
    weights = [piece.layers + (head_weight(shape) if piece.last else 0) for piece in pieces]
    uneven = max(weights) * len(weights) / sum(weights)
    work = layout.micro_batch * shape.context / layout.tp
    reached = hardware.efficiency * work / (work + SMALL)
    compute = flops / (layout.world * hardware.tflops * 1e12 * reached) * uneven
    bubble = compute * (layout.pp - 1) / (layout.accumulation * p.stages)

    stream = layout.micro_batch * shape.context * shape.hidden * width  # bytes between two blocks, one micro-batch
    turns, most = layout.accumulation, max(piece.layers for piece in pieces)
    # Two all-reduces forward and two backward in a block; under recomputing two more.
    reduces = (6 if p.activation_checkpointing == "full" else 4) * most * turns
    tensor = reduces * _ring(stream, layout.tp) * 2 / (hardware.link * GB)
    crossing = layout.world > hardware.gpus_per_node
    wire = (hardware.network if crossing else hardware.link) * GB
    pipeline = 0.0 if layout.pp == 1 else 2 * (layout.pp - 1 + turns) * p.stages * stream / layout.tp / wire

    count = max(parameters(piece, shape, layout.tp) for piece in pieces)
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * turns}[p.zero]
    scatters = turns if p.zero >= 2 and layout.pp == 1 else 1
    moved = gathers + scatters if p.zero else 2
    data = max(0.0, moved * _ring(count * FP32, layout.data) / wire - HIDDEN * compute)

    share = count / layout.shard
    if p.offload:
        update = share * (2 * FP32 / (hardware.host * GB) + ADAMW / (hardware.cpu_bandwidth * GB))
        update += (gathers + scatters) * share * FP32 / (hardware.host * GB)
    else:
        update = share * ADAMW / (hardware.bandwidth * GB)
    return Duration(compute, bubble, tensor, data, pipeline, update)


def _ring(volume: float, members: int) -> float:
    """Bytes that each member of a ring sends to reduce-scatter, or to all-gather, a volume."""
    return volume * (members - 1) / members
