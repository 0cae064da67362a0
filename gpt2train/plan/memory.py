"""Peak memory of a rank in a step, by kind; tests/gpt2train/plan compares it with measured bytes."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS, block_sizes, is_residual, sizes
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.parameters import Piece, block_parameters, blocks_parameters, matrix_parameters, parameters

FP32 = 4
HALF = 2
CHUNK = {"cpu": 256, "cuda": 2048}  # rows of logits at a time, as in gpt2train.model.loss, which imports torch
EDGE = 3  # fp32 residual streams outside the blocks: after the embedding, before and after the last LayerNorm


@dataclass(frozen=True)
class Memory:
    """Peak memory of one rank, in bytes.

    Attributes:
        parameters: its shard of the fp32 parameters.
        gradients: gradients at that moment, sharded and unsharded.
        optimizer: its shard of the optimizer's state.
        gathered: parameters that are temporarily unsharded, or half-precision copies.
        activations: activations saved for the backward pass.
        head: logits of one chunk, and the gradient of the head that the loss keeps.
        on_cpu: part of the first three that is in the CPU's memory (offload).
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
    """Return the number of micro-batches whose activations a pipeline rank holds at once.

    GPipe holds all, 1F1B the number of ranks from this one to the last, interleaved 1F1B somewhat more (Narayanan et
    al. 2021, section 2.2). With several stages per rank, the unit is a micro-batch in all stages of the rank.
    """
    pp, micro_batches, stages = layout.pp, layout.accumulation, settings.parallel.virtual_pipeline_stages
    if pp == 1:
        return 1
    if settings.parallel.schedule == "gpipe":
        return micro_batches
    if settings.parallel.schedule == "1f1b":
        return min(micro_batches, pp - rank)
    warmup = (pp - rank - 1) * 2 + (stages - 1) * pp + 2
    return min(warmup, micro_batches * stages) / stages


def saved_bytes(shape: Shape, layout: Layout, settings: TrainSettings, mode: str) -> float:
    """Return the bytes that a block saves per token for the backward pass, without dropout.

    The residual stream in float32 is a slice under sequence parallelism; the outputs of both norms are on every
    tensor-parallel rank; the outputs of column-parallel and the inputs of row-parallel layers are split (in a GPT-2 of
    width H: q, k, v 3 H, up 4 H; attention H, GELU 4 H).

    Args:
        shape: shape of the model.
        layout: layout of all ranks.
        settings: settings of the run.
        mode: activation checkpointing: "none", "selective" (without the norms' outputs and the input of the last layer;
            of layers without bias, or that narrow, also without their output) or "full" (the input of the block).
    """
    p, width, item = settings.parallel, shape.hidden, FP32 if settings.precision == "fp32" else HALF
    stream = FP32 * width / (layout.tp if layout.tp > 1 and p.sequence_parallel else 1)
    if mode == "full":
        return stream
    matrices = {f"blocks.0.{name}": size for name, size in block_sizes(shape).items() if len(size) > 1}
    outputs = {name: size[0] for name, size in matrices.items() if not is_residual(name, shape)}
    inputs = sum(size[1] for name, size in matrices.items() if is_residual(name, shape))
    if mode == "selective":
        stored = sum(
            size
            for name, size in outputs.items()
            if size >= matrices[name][1] and f"{name.removesuffix('weight')}bias" in sizes(shape)
        )
        return 2 * stream + item * (stored + shape.heads * shape.head_dim) / layout.tp
    more = MODELS[shape.family].more_saved(shape)
    return 2 * stream + 2 * item * width + item * (sum(outputs.values()) + inputs + more) / layout.tp


def optimizer_states(settings: TrainSettings, shape: Shape, piece: Piece, layout: Layout, count: int) -> float:
    """Return the numbers of optimizer state per parameter: 2 of AdamW, 1 of Muon for the matrices of the blocks."""
    if settings.optimizer.name == "adamw":
        return 2.0
    return 2.0 - matrix_parameters(piece, shape, layout.tp) / count


def peak(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> Memory:
    """Return the peak memory of a rank in a step.

    Args:
        settings: settings of the run, with the layout in them.
        shape: shape of the model.
        layout: layout of all ranks.
        piece: part of the model on the rank.
        rank: pipeline rank.
    """
    p, kind = settings.parallel, "fp32" if settings.precision == "fp32" else "half"
    count = parameters(piece, shape, layout.tp)
    blocks_count = blocks_parameters(piece, shape, layout.tp)
    block = max(block_parameters(shape, layout.tp, start) for start in MODELS[shape.family].first_blocks(shape))
    share = -(-count // layout.shard)
    vocab = 0 if shape.labels else shape.padded_vocab // layout.tp  # a classifier's output is negligible
    table = vocab * shape.hidden
    states = optimizer_states(settings, shape, piece, layout, count)

    # Unsharded parameters: ZeRO 3 and offload have one block and the prefetched next one, the others all blocks. On
    # several ranks blocks are gathered in half precision; on one, autocast makes copies of all parameters.
    root = count - blocks_count
    two_blocks = min(2, piece.layers) * block
    single_rank = layout.world == 1 and not p.offloads_weights  # then FSDP, which gathers copies, is not used
    gathers_half = kind == "half" and layout.world > 1
    unsharded = FP32 * root + (HALF if gathers_half else FP32) * (
        two_blocks if p.zero == 3 or p.offloads_weights else blocks_count
    )
    unsharded = 0 if single_rank else unsharded
    # Gradients of earlier micro-batches: ZeRO 0 and 1 reduce them over the ranks only after the last one.
    reduced_early = p.zero >= 2 or p.offloads_weights
    accumulated = (share if reduced_early else count) if layout.accumulation > 1 else 0
    copies = HALF * count if kind == "half" and not gathers_half else 0

    tokens = layout.micro_batch * settings.model.context
    sequence_shards = layout.tp if layout.tp > 1 and p.sequence_parallel else 1
    saved = saved_bytes(shape, layout, settings, p.activation_checkpointing)
    blocks = piece.layers * saved * in_flight(settings, layout, rank)
    blocks += saved_bytes(shape, layout, settings, "none") - saved  # recomputed, for the block in its backward pass
    edge = EDGE * FP32 * shape.hidden / sequence_shards * (piece.first or piece.last)
    chunk = min(tokens, CHUNK["cpu" if settings.device == "cpu" else "cuda"]) * vocab
    head = (2 * FP32 * chunk + FP32 * table) if piece.last else 0
    head += HALF * (chunk + table) if piece.last and kind == "half" else 0

    # With the optimizer alone on the CPU, AdamW there has a copy of the weights, and from a GPU one of the gradients.
    alone = p.cpu_offload and not p.offloads_weights
    host_copies = FP32 * share * (1 if settings.device == "cpu" else 2) if alone else 0
    states_on_cpu = round(states * FP32 * share) if alone else 0
    # The larger of two moments: the start of the last backward pass, and its end.
    start = Memory(
        parameters=FP32 * share,
        gradients=FP32 * accumulated,
        optimizer=round(states * FP32 * share),
        gathered=unsharded + copies,
        activations=round(tokens * (blocks + edge)),
        head=head,
        on_cpu=round(FP32 * ((1 + states) * share + accumulated)) if p.offloads_weights else states_on_cpu,
        copies=host_copies,
    )
    end = Memory(
        parameters=FP32 * share,
        gradients=FP32 * (share if reduced_early else count),
        optimizer=round(states * FP32 * share),
        gathered=unsharded + (FP32 * (root + two_blocks) if reduced_early else 0),
        activations=0,
        head=0,
        on_cpu=round(FP32 * (2 + states) * share) if p.offloads_weights else states_on_cpu,
        copies=host_copies,
    )
    return max(start, end, key=lambda moment: moment.device)
