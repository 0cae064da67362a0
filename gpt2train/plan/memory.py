"""Bytes that a rank needs at the peak of a step, by kind. Held against measured bytes in tests/gpt2train/plan."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.parameters import Piece, block_parameters, parameters

FP32 = 4
HALF = 2
CHUNK = {"cpu": 256, "cuda": 2048}  # rows of logits at a time, as in gpt2train.model.loss, which imports torch
# Bytes that one token leaves in one block for the backward pass, in units of the width H, without dropout: of the
# residual stream, of the inputs of qkv and up (whole on every tensor-parallel rank), of what tensor parallelism splits.
KEPT = {
    "fp32": (8, 8, 48),  # x 4, x 4 | ln_1 4, ln_2 4 | q, k, v 12, attention 4, up 16, gelu 16
    "half": (8, 4, 24),  # x 4, x 4 | ln_1 2, ln_2 2 | q, k, v 6, attention 2, up 8, gelu 8
}
# The same under activation checkpointing; what is left out here exists for one block at a time.
SELECTIVE = {"fp32": (8, 0, 32), "half": (8, 0, 16)}  # without the norms' outputs and gelu
FULL = {"fp32": (4, 0, 0), "half": (4, 0, 0)}  # the input of the block
EDGE = 3  # residual streams (fp32) beside the blocks: after the embedding, before and after the last LayerNorm


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its peak.

    Attributes:
        parameters: its share of the fp32 parameters.
        gradients: those that are there at that moment, whole ones too.
        optimizer: its share of AdamW's two means.
        gathered: parameters that are whole for a while, and their half-precision copies.
        activations: what the forward pass leaves for the backward pass.
        head: logits of one chunk, and the gradient of the head that the loss keeps.
        on_cpu: bytes of the first three that lie in the CPU's memory instead (offload).
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    head: int
    on_cpu: int = 0

    @property
    def device(self) -> int:
        """Bytes on the device."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.activations
            + self.head
            - self.on_cpu
        )


def in_flight(settings: TrainSettings, layout: Layout, rank: int) -> float:
    """Micro-batches whose activations a pipeline rank holds at once, in units of one rank's whole piece.

    GPipe holds all; 1F1B as many as there are ranks from here to the end; interleaved 1F1B somewhat more
    (Narayanan et al. 2021, section 2.2).
    """
    pp, turns, stages = layout.pp, layout.accumulation, settings.parallel.stages
    if pp == 1:
        return 1
    if settings.parallel.schedule == "gpipe":
        return turns
    if settings.parallel.schedule == "1f1b":
        return min(turns, pp - rank)
    warm = (pp - rank - 1) * 2 + (stages - 1) * pp + 2
    return min(warm, turns * stages) / stages


def peak(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> Memory:
    """The largest memory of a rank in a step.

    Args:
        piece: what the rank holds of the pipeline.
        rank: its place in the pipeline.
    """
    p, kind = settings.parallel, "fp32" if settings.precision == "fp32" else "half"
    count = parameters(piece, shape, layout.tp)
    block = block_parameters(shape, layout.tp)
    share = -(-count // layout.shard)
    table = shape.padded_vocab // layout.tp * shape.hidden

    # Parameters that are whole: ZeRO 3 has one block and the next, which is fetched ahead, the others everything.
    root = count - piece.layers * block
    few = root + min(2, piece.layers) * block
    alone = layout.world == 1 and not p.offload  # FSDP, which gathers copies, is left away then
    whole = 0 if alone else few if p.zero == 3 else count
    # Gradients of earlier micro-batches: ZeRO 0 and 1 sum them over the processes only after the last one.
    before = (count if p.zero <= 1 else share) if layout.accumulation > 1 else 0
    copies = HALF * count if kind == "half" else 0

    tokens = layout.micro_batch * shape.context
    along = layout.tp if layout.tp > 1 and p.sequence_parallel else 1
    kept = {"none": KEPT, "selective": SELECTIVE, "full": FULL}[p.activation_checkpointing][kind]

    def block_bytes(parts: tuple[int, int, int]) -> float:
        stream, inputs, inside = parts
        return shape.hidden * (stream / along + inputs + inside / layout.tp)

    blocks = piece.layers * block_bytes(kept) * in_flight(settings, layout, rank)
    blocks += block_bytes(KEPT[kind]) - block_bytes(kept)  # the block whose backward pass is under way
    edge = EDGE * FP32 * shape.hidden / along * (piece.first or piece.last)
    chunk = min(tokens, CHUNK["cpu" if settings.device == "cpu" else "cuda"]) * shape.padded_vocab // layout.tp
    head = (2 * FP32 * chunk + FP32 * table) if piece.last else 0
    head += HALF * (chunk + table) if piece.last and kind == "half" else 0

    # The fuller of two moments: the beginning of the last backward pass, and its end.
    beginning = Memory(
        parameters=FP32 * share,
        gradients=FP32 * before,
        optimizer=2 * FP32 * share,
        gathered=FP32 * whole + copies,
        activations=round(tokens * (blocks + edge)),
        head=head,
        on_cpu=FP32 * (3 * share + (before if p.zero >= 2 else 0)) if p.offload else 0,
    )
    end = Memory(
        parameters=FP32 * share,
        gradients=FP32 * (count if p.zero <= 1 else share),
        optimizer=2 * FP32 * share,
        gathered=FP32 * (whole + (few if p.zero >= 2 else 0)),
        activations=0,
        head=0,
        on_cpu=FP32 * (4 if p.zero >= 2 else 3) * share if p.offload else 0,
    )
    return max(beginning, end, key=lambda moment: moment.device)
