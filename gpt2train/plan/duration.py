"""Expected step time by a roofline model of computation and communication; meant to rank layouts, not as a forecast."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.head_split import uneven_heads
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.pipeline_stages import head_weight
from gpt2train.plan.activations import FP32, HALF
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.parameters import Piece, blocks_parameters, parameters
from gpt2train.plan.recomputation import repeated_reduces, slowdown

# Per parameter and update: weight, 2 moments and, for its norm too, the gradient read; all four written.
ADAMW_BYTES = 36
ADDED_BYTES = 10  # per parameter and micro-batch: its gradient in half precision, added in float32
# Traffic of compiled code between the products, as `python -m benchmarks.gpu_bytes` counts it: per token, block and
# unit of width, without and with a residual stream in bf16; and per logit.
BLOCK_BYTES = {False: 142, True: 101}
LOGIT_BYTES = 6
COPIES = 0.9  # fraction of the bandwidth of a data sheet that copies reach (seen: 3.0 and 4.3 of 3.35 and 4.8 TB/s)
PRODUCTS = 0.775  # fraction of the time at `Hardware.efficiency` that is products: an H100 at 345M, a stream in fp32
HALF_SPEED_TOKENS = 1024  # tokens of a micro-batch per tensor-parallel rank at which a GPU has half its efficiency
BACKWARD = 2 / 3  # fraction of the computation of a micro-batch


@dataclass(frozen=True)
class Duration:
    """Seconds of one step, by kind of work.

    Attributes:
        compute: matrix products of the slowest rank, and the traffic between them.
        bubble: pipeline bubble, filling and draining.
        tensor: all-reduces of tensor parallelism, which do not overlap with computation, and weights of heads that the
            degree does not divide.
        data: reduction of gradients and gathering of parameters, as far as no computation overlaps with them.
        pipeline: transfer of activations between stages.
        update: AdamW, the addition of gradients, and with offload the transfers to and from the CPU.
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
    settings: TrainSettings,
    shape: Shape,
    layout: Layout,
    pieces: list[Piece],
    hardware: Hardware,
    resident: float = 0.0,
) -> Duration:
    """Estimate the time of one optimizer step on a layout.

    Args:
        settings: settings of the run, with the layout in them.
        shape: shape of the model.
        layout: layout of all ranks.
        pieces: part of the model on each pipeline rank.
        hardware: speeds of the machines.
        resident: with the optimizer alone on the CPU, the fraction of its state that fits on the device.
    """
    p = settings.parallel
    width = FP32 if settings.precision == "fp32" else HALF
    length = settings.model.context
    tokens = layout.global_batch * length
    uneven = uneven_heads(shape, layout.tp)  # all ranks wait for the one with the most heads
    products = 12 * shape.hidden * (uneven.queries + uneven.products) + 12 * length * uneven.queries
    flops_of_token = flops_per_token(shape, length) + shape.layers * shape.head_dim * products
    flops = tokens * flops_of_token * slowdown(settings, shape, layout.tp)
    # The slowest stage determines the time; the head costs as much as several layers.
    weights = [piece.layers + (head_weight(shape) if piece.last else 0) for piece in pieces]
    imbalance = max(weights) * len(weights) / sum(weights)
    work = layout.micro_batch * length / layout.tp
    efficiency = hardware.efficiency / PRODUCTS * work / (work + HALF_SPEED_TOKENS)
    moved = shape.layers * shape.hidden * BLOCK_BYTES[settings.has_half_stream(True)] + LOGIT_BYTES * shape.padded_vocab
    traffic = tokens * moved * slowdown(settings, shape, layout.tp) / (hardware.bandwidth * GB * COPIES)
    compute = (flops / (hardware.tflops * 1e12 * efficiency) + traffic) / layout.world * imbalance
    bubble = compute * (layout.pp - 1) / (layout.accumulation * p.virtual_pipeline_stages)

    stream = layout.micro_batch * length * shape.hidden * width  # bytes between two blocks, per micro-batch
    micro_batches, max_layers = layout.accumulation, max(piece.layers for piece in pieces)
    # Two all-reduces forward and two backward per block.
    reduces = (4 + repeated_reduces(settings)) * max_layers * micro_batches
    exchanged = reduces / 2 * width * uneven.moved  # weights of heads that other ranks store, and their gradients
    tensor = (reduces * _ring(stream, layout.tp) * 2 + exchanged) / (hardware.link * GB)
    multi_node = layout.world > hardware.gpus_per_node
    link_bandwidth = (hardware.network if multi_node else hardware.link) * GB
    passes = 0 if layout.pp == 1 else 2 * (layout.pp - 1 + micro_batches) * p.virtual_pipeline_stages
    pipeline = passes * stream / layout.tp / link_bandwidth

    largest = max(pieces, key=lambda piece: parameters(piece, shape, layout.tp))
    count, blocks = parameters(largest, shape, layout.tp), blocks_parameters(largest, shape, layout.tp)
    # With offload, every ZeRO stage gathers and reduces block by block, as ZeRO 3 does.
    gathers = 2 * micro_batches if p.zero == 3 or p.offloads_weights else 1
    scatters = micro_batches if (p.zero >= 2 or p.offloads_weights) and layout.pp == 1 else 1
    # Blocks are gathered in the compute dtype, the root and all gradients are sent in float32.
    gathered = FP32 * (count - blocks) + width * blocks
    gather = _ring(gathered if p.zero else 0.0, layout.data) / link_bandwidth
    reduce = _ring((1 if p.zero else 2) * FP32 * count, layout.data) / link_bandwidth
    # FSDP gathers the next block while one is computed, and reduces the gradients of the one before.
    forward, backward = ((compute / micro_batches) * share for share in (1 - BACKWARD, BACKWARD))
    data = gathers * _exposed(gather, forward, max_layers) + scatters * _exposed(reduce, backward, max_layers)

    share = count / layout.shard
    on_device = share * ADAMW_BYTES / (hardware.bandwidth * GB)
    if p.cpu_offload and not p.offloads_weights:  # gradients and weights go to the CPU, weights come back
        on_cpu = share * (3 * FP32 / (hardware.host * GB) + ADAMW_BYTES / (hardware.cpu_bandwidth * GB))
        update = resident * on_device + (1 - resident) * on_cpu
    elif p.cpu_offload:
        update = share * (2 * FP32 / (hardware.host * GB) + ADAMW_BYTES / (hardware.cpu_bandwidth * GB))
        update += (gathers + scatters) * share * FP32 / (hardware.host * GB)
    else:
        update = on_device
    update += micro_batches * count * ADDED_BYTES / (hardware.bandwidth * GB)
    return Duration(compute, bubble, tensor, data, pipeline, update)


def _exposed(transfer: float, computation: float, blocks: int) -> float:
    """Return the seconds of a transfer, block by block, that do not overlap with a computation of as many blocks.

    At least those of one block: of the first gather, before which nothing can be computed, and of the last reduction.
    """
    return max(transfer - computation, transfer / max(1, blocks))


def _ring(volume: float, members: int) -> float:
    """Return the bytes that each member of a ring sends to reduce-scatter, or to all-gather, a volume."""
    return volume * (members - 1) / members
