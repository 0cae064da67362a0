"""Peak memory of a rank in a step, by kind; tests/gpt2train/plan compares it with measured bytes."""

from dataclasses import dataclass, replace

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.activations import FP32, HALF, activations
from gpt2train.plan.parameters import Piece, block_parameters, blocks_parameters, matrix_parameters, parameters


@dataclass(frozen=True)
class Memory:
    """Peak memory of one rank, in bytes.

    Attributes:
        parameters: its shard of the fp32 parameters.
        gradients: gradients at that moment, sharded and unsharded.
        optimizer: its shard of the optimizer's state.
        gathered: parameters that are temporarily unsharded, or half-precision copies.
        activations: activations saved for the backward pass, and the gradients that the loss keeps.
        head: logits of one or two chunks.
        on_cpu: part of the first three that is in the CPU's memory (offload); 0 on a CPU, whose memory is the device's.
        copies: copies of weights and gradients in the CPU's memory beside that (offload of the optimizer alone).
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    head: int
    on_cpu: int = 0
    copies: int = 0

    @property
    def device(self) -> int:
        """Bytes on the device."""
        held = (self.parameters, self.gradients, self.optimizer, self.gathered, self.activations, self.head)
        return sum(held) - self.on_cpu


def compiled_change(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> int:
    """Return the bytes by which compilation changes the peak of a rank; 0 of a run that is not compiled.

    Compiled code keeps less of the stream and has more logits at a time, so that it can be either sign. A simulated
    step is not compiled: its peak and this are the memory of the run. Arguments as of `peak`.
    """
    performance = settings.performance.model_copy(update={"compile": "off"})
    plain = settings.model_copy(update={"performance": performance})
    return peak(settings, shape, layout, piece, rank).device - peak(plain, shape, layout, piece, rank).device


def peak(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> Memory:
    """Return the peak memory of a rank in a step."""
    p, kind = settings.parallel, "fp32" if settings.precision == "fp32" else "half"
    count = parameters(piece, shape, layout.tp)
    blocks_count = blocks_parameters(piece, shape, layout.tp)
    block = max(block_parameters(shape, layout.tp, start) for start in MODELS[shape.family].first_blocks(shape))
    share = -(-count // layout.shard)
    # Numbers of optimizer state per parameter: 2 of AdamW, 1 of Muon for the matrices of the blocks.
    states = 2.0 if settings.optimizer.name == "adamw" else 2.0 - matrix_parameters(piece, shape, layout.tp) / count

    # Unsharded parameters: ZeRO 3 and offload have one block and the prefetched next one, the others all blocks. On
    # several ranks blocks are gathered in half precision; on one, autocast makes copies of all parameters.
    root = count - blocks_count
    two_blocks = min(2, piece.layers) * block
    single_rank = layout.world == 1 and not p.offloads_weights  # then FSDP, which gathers copies, is not used
    gathers_half = kind == "half" and layout.world > 1
    blocks = two_blocks if p.zero == 3 or p.offloads_weights else blocks_count
    unsharded = 0 if single_rank else FP32 * root + (HALF if gathers_half else FP32) * blocks
    # Gradients of earlier micro-batches: ZeRO 0, ZeRO 1 and pipelines reduce them only after the last micro-batch.
    reduced_early = (p.zero >= 2 or p.offloads_weights) and layout.pp == 1
    accumulated = (share if reduced_early else count) if layout.accumulation > 1 else 0
    autocast = count if settings.performance.fp8 == "off" else root  # products in 8 bits keep no copies of weights
    copies = HALF * autocast if kind == "half" and not gathers_half else 0

    found = activations(settings, shape, layout, piece, rank)

    # With the optimizer alone on the CPU, AdamW there has a copy of the weights, and from a GPU one of the gradients.
    alone = p.cpu_offload and not p.offloads_weights
    away = settings.device != "cpu"
    host_copies = FP32 * share * 2 if alone and away else 0
    optimizer = round(states * FP32 * share) + (FP32 * share if alone and not away else 0)
    states_on_cpu = optimizer if alone and away else 0
    offloaded = p.offloads_weights and away
    # The largest of three moments: the loss, the backward pass of the block that needs most, and its end.
    loss = Memory(
        parameters=FP32 * share,
        gradients=FP32 * accumulated,
        optimizer=optimizer,
        gathered=unsharded + copies,
        activations=round(found.kept),
        head=round(found.loss),
        on_cpu=round(FP32 * ((1 + states) * share + accumulated)) if offloaded else states_on_cpu,
        copies=host_copies,
    )
    backward = replace(loss, activations=round(found.kept + found.backward), head=0)
    end = replace(
        loss,
        gradients=FP32 * (share if reduced_early else count),
        gathered=unsharded + (FP32 * (root + two_blocks) if reduced_early else 0),
        activations=0,
        head=0,
        on_cpu=round(FP32 * (2 + states) * share) if offloaded else states_on_cpu,
    )
    return max(loss, backward, end, key=lambda moment: moment.device)
