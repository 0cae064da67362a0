"""Peak memory of a rank in a step, by kind; tests/gpt2train/plan compares it with measured bytes."""

from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS, block_sizes, is_residual, sizes
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.parameters import (
    Piece,
    block_parameters,
    blocks_parameters,
    kinds_of,
    matrix_parameters,
    parameters,
)

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


def saved_bytes(shape: Shape, layout: Layout, settings: TrainSettings, mode: str, start: int = 0) -> float:
    """Return the bytes that a block saves per micro-batch for the backward pass, without dropout.

    The residual stream in float32 is a slice under sequence parallelism; the outputs of all norms are on every
    tensor-parallel rank; the outputs of column-parallel and the inputs of row-parallel layers are split (in a GPT-2 of
    width H: q, k, v 3 H, up 4 H; attention H, GELU 4 H). A block that attends to an encoder has a third norm, and keys
    and values of the encoder's tokens. With position biases a CPU keeps the probabilities of the attention in float32;
    a GPU the biases, in half precision for every block.

    Args:
        shape: shape of the model.
        layout: layout of all ranks.
        settings: settings of the run.
        mode: activation checkpointing: "none", "selective" (without the norms' outputs and the input of the last layer;
            of layers without bias, or that narrow, also without their output) or "full" (the input of the block).
        start: number of the first block of its kind.
    """
    family, item = MODELS[shape.family], FP32 if settings.precision == "fp32" else HALF
    length, micro_batch = _length(settings, shape, start), layout.micro_batch
    tokens = micro_batch * length
    stream = FP32 * tokens * shape.hidden / _slices(settings, layout)
    if mode == "full":
        return stream
    matrices = {f"blocks.{start}.{name}": size for name, size in block_sizes(shape, start).items() if len(size) > 1}
    outputs = {name: size[0] for name, size in matrices.items() if not is_residual(name, shape)}
    inputs = sum(size[1] for name, size in matrices.items() if is_residual(name, shape))
    read = sum(size for name, size in outputs.items() if name.rpartition(".")[0].endswith(family.encoder_readers))
    attention = shape.heads * shape.head_dim * (2 if read else 1)
    if mode == "selective":
        stored = sum(
            size
            for name, size in outputs.items()
            if size >= matrices[name][1] and f"{name.removesuffix('weight')}bias" in sizes(shape)
        )
        return 2 * stream + item * tokens * (stored + attention) / layout.tp
    norms, columns = 3 if read else 2, sum(outputs.values()) - read + inputs + family.more_saved(shape)
    split = item * (tokens * columns + micro_batch * settings.model.context * read)
    if family.head_tables and settings.device == "cpu":
        split += FP32 * shape.heads * tokens * length
    elif family.head_tables and item == HALF:
        split += HALF * shape.heads * length**2
    return norms * (stream + item * tokens * shape.hidden) + split / layout.tp


def _length(settings: TrainSettings, shape: Shape, start: int) -> int:
    """Tokens per sample of the blocks of a kind, by the first block of that kind."""
    family = MODELS[shape.family]
    further = dict(zip(family.first_blocks(shape)[1:], family.lengths(shape)[1:], strict=False))
    return further.get(start, settings.model.context)


def _slices(settings: TrainSettings, layout: Layout) -> int:
    """Number of slices of a sequence outside attention and MLP."""
    return layout.tp if layout.tp > 1 and settings.parallel.sequence_parallel else 1


def _edge_tokens(settings: TrainSettings, piece: Piece, shape: Shape) -> int:
    """Tokens per sample of the residual streams outside the blocks of a piece, each counted once for each stream.

    Each sequence has `EDGE` of them, on the ranks with its first or its last block. Blocks that attend to an encoder
    share its output, which all of their ranks have.
    """
    family, kinds = MODELS[shape.family], kinds_of(piece, shape)
    if len(family.lengths(shape)) == 1:
        return EDGE * settings.model.context * (piece.first or piece.last)
    starts = family.first_blocks(shape)
    total = 0
    for start, end in zip(starts, (*starts[1:], shape.layers), strict=True):
        ends = start in piece.blocks or end - 1 in piece.blocks
        total += EDGE * _length(settings, shape, start) * ends
        total += settings.model.context * (start > 0 and kinds[start] > 0)
    return total


def _received_bytes(settings: TrainSettings, shape: Shape, layout: Layout, rank: int) -> int:
    """Bytes for what a pipeline rank receives: torch allocates them for all micro-batches at the start of a step."""
    neighbours = (rank > 0) + (rank < layout.pp - 1)  # activations from one, gradients from the other
    item = FP32 if settings.precision == "fp32" else HALF
    tokens = layout.micro_batch * settings.model.context // _slices(settings, layout)
    return neighbours * layout.accumulation * item * tokens * shape.hidden


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
    # Gradients of earlier micro-batches: ZeRO 0, ZeRO 1 and pipelines reduce them only after the last micro-batch.
    reduced_early = (p.zero >= 2 or p.offloads_weights) and layout.pp == 1
    accumulated = (share if reduced_early else count) if layout.accumulation > 1 else 0
    copies = HALF * count if kind == "half" and not gathers_half else 0

    kinds, mode = kinds_of(piece, shape), p.activation_checkpointing
    saved = {start: saved_bytes(shape, layout, settings, mode, start) for start in kinds}
    blocks = sum(kinds[start] * saved[start] for start in kinds) * in_flight(settings, layout, rank)
    # Recomputed, for the block in its backward pass.
    blocks += max(saved_bytes(shape, layout, settings, "none", start) - saved[start] for start in kinds if kinds[start])
    edge = FP32 * layout.micro_batch * shape.hidden / _slices(settings, layout)
    edge *= _edge_tokens(settings, piece, shape)
    edge += _received_bytes(settings, shape, layout, rank)
    tokens = layout.micro_batch * _length(settings, shape, MODELS[shape.family].first_blocks(shape)[-1])
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
        activations=round(blocks + edge),
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
