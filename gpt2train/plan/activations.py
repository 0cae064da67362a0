"""Bytes of activations of a pipeline rank, by formulas; tests/gpt2train/plan compares them with simulated steps."""

import math
from dataclasses import dataclass
from functools import cache

from gpt2train.config import TrainSettings
from gpt2train.model.families import MODELS, block_sizes, is_residual, is_value_table, on_stage, sizes
from gpt2train.model.shape import LOGIT_CHUNK, Shape
from gpt2train.parallel.head_split import uneven_heads
from gpt2train.parallel.layout import Layout
from gpt2train.plan.parameters import Piece, kinds_of, stages_of
from gpt2train.plan.recomputation import stored_products

FP32 = 4
HALF = 2
FP8 = 1
INT64 = 8


@dataclass(frozen=True)
class Activations:
    """Bytes of the activations of a pipeline rank."""

    kept: float  # kept for backward passes by all micro-batches in flight, and buffers for what is received
    loss: float  # in addition while the loss is computed; 0 on a rank without head
    backward: float  # in addition in the backward pass of the block that needs most, recomputed activations among them


def activations(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> Activations:
    """Return the activations of a rank; arguments as of `gpt2train.plan.memory.peak`."""
    mode, kinds = settings.parallel.activation_checkpointing, kinds_of(piece, shape)
    saved = {start: saved_bytes(shape, layout, settings, mode, start) for start in kinds}
    kept = sum(kinds[start] * saved[start] for start in kinds) + _between_blocks(settings, shape, layout, piece)
    backward = max(
        saved_bytes(shape, layout, settings, "none", start)
        - saved[start]
        + _backward_bytes(settings, shape, layout, start)
        for start in kinds
        if kinds[start]
    )
    loss = 0.0
    if piece.last and not shape.labels:  # a classifier's output is negligible
        hidden = _stream(settings, shape, layout, _lengths(settings, shape)[-1])
        table = shape.padded_vocab // layout.tp * shape.hidden
        kept += hidden + FP32 * table  # gradients of the last hidden states and of the head
        loss = hidden + _logit_bytes(settings, shape, layout)
    kept *= in_flight(settings, layout, rank)
    return Activations(kept + _transferred_bytes(settings, shape, layout, piece, rank), loss, backward)


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
    passes = (pp - rank - 1) * 2 + (stages - 1) * pp + 1
    return min(passes, micro_batches * stages) / stages


def saved_bytes(shape: Shape, layout: Layout, settings: TrainSettings, mode: str, start: int = 0) -> float:
    """Return the bytes that a block saves per micro-batch for the backward pass.

    The residual stream (`performance.stream`), the input of every norm, is a slice under sequence parallelism. Tensor
    parallelism gathers the output of a norm once, in the precision of the products; without it autocast makes a copy
    for each column-parallel layer that reads it. With one fp8 scale per matrix each layer has a copy of its input in 8
    bits in place of one in half precision. The outputs of column-parallel and the inputs of row-parallel layers are
    split (in a GPT-2 of width H: q, k, v 3 H, up 4 H; attention H, GELU 4 H). A block that attends to an encoder has a
    third norm, and keys and values of the encoder's tokens. With position biases a CPU keeps the probabilities of the
    attention in float32, with dropout three matrices of that size; a GPU the biases, in half precision for every block.
    With heads that the degree does not divide, the rank with the most of them counts, and each micro-batch has a copy
    of the weights of its heads.

    Args:
        shape: shape of the model.
        layout: layout of all ranks.
        settings: settings of the run.
        mode: activation checkpointing: "none", "selective" (input, attention, outputs of layers with bias) or "full"
            (the input of the block).
        start: number of the first block of its kind.
    """
    family, item = MODELS[shape.family], _item(settings)
    half = item == HALF
    length, context, micro_batch = _length(settings, shape, start), settings.model.context, layout.micro_batch
    tokens = micro_batch * length
    stream = _stream(settings, shape, layout, length)
    if mode == "full":
        return stream
    matrices = {f"blocks.{start}.{name}": size for name, size in block_sizes(shape, start).items() if len(size) > 1}
    outputs = {name: size[0] for name, size in matrices.items() if not is_residual(name, shape)}
    inputs = [size[1] for name, size in matrices.items() if is_residual(name, shape)]
    readers = [name for name in outputs if name.rpartition(".")[0].endswith(family.encoder_readers)]
    read = sum(outputs[name] for name in readers)
    uneven, attentions = uneven_heads(shape, layout.tp), 2 if read else 1
    heads = shape.heads + uneven.queries
    attention = heads * shape.head_dim * attentions
    if mode == "selective":
        stored = sum(block_sizes(shape, start)[name][0] for name in stored_products(settings, shape, layout.tp, start))
        return stream + item * tokens * (stored + attention) / layout.tp
    norms = 3 if read else 2
    eight = settings.performance.fp8 == "tensorwise"
    size = FP8 if eight else item
    copies = norms if (layout.tp > 1 and not eight) or not half else len(outputs) - len(readers)
    normed = size * tokens * shape.hidden * copies
    if eight or (half and layout.tp == 1):
        normed += size * micro_batch * context * shape.hidden * len(readers)
    dropped, more = settings.model.dropout > 0, family.more_saved(shape)
    inner = family.inner_dropout(shape) if dropped else 0
    columns = sum(outputs.values()) - read + sum(inputs) + (max(0, more) if inner else more)
    columns += 2 * shape.head_dim * (uneven.queries * attentions + uneven.keys)
    if eight:  # the attention keeps its output in half precision itself
        columns += attention - sum(inputs) * FP8 // HALF
    read += 2 * shape.head_dim * uneven.keys if read else 0
    split = item * (tokens * columns + micro_batch * context * read) + FP32 * tokens * family.saved_in_float32(shape)
    if settings.device == "cpu" and dropped:
        # Scores after the softmax, mask and product; queries, keys and values in float32.
        split += 3 * FP32 * heads * tokens * (length + (context if read else 0))
        split += 3 * (FP32 - item) * tokens * attention
    elif settings.device == "cpu" and family.head_tables:
        split += (FP32 + (HALF if half else 0)) * heads * tokens * length
    elif family.head_tables and half:
        split += HALF * heads * length**2
    masks = (_mask_item(settings) * tokens * shape.hidden * norms / _slices(settings, layout)) if dropped else 0
    split += _mask_item(settings) * tokens * inner
    # Compiled code makes the stream again from outputs of products: 31 bytes per token and unit of width in a GPT-2.
    again = _is_compiled(settings) and not settings.has_half_stream(on_gpu=True)
    kept = stream * item / FP32 if again else stream
    return norms * kept + normed + split / layout.tp + masks + item * uneven.weights * attentions


def _between_blocks(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece) -> float:
    """Bytes per micro-batch that a piece keeps outside of its blocks, without the head."""
    family, kinds = MODELS[shape.family], kinds_of(piece, shape)
    starts, lengths = family.first_blocks(shape), _lengths(settings, shape)
    streams = sum(  # the last block of a sequence is followed by a norm
        _stream(settings, shape, layout, length)
        for end, length in zip((*starts[1:], shape.layers), lengths, strict=True)
        if (end - 1 in piece.blocks or (len(lengths) == 1 and piece.last))
    )
    if piece.first and settings.model.dropout:
        streams += _mask_item(settings) / FP32 * _stream(settings, shape, layout, lengths[0])
    if piece.first and dict(shape.options).get("embedding_norm"):
        streams += _stream(settings, shape, layout, lengths[0])
    if len(lengths) == 1:
        return streams + _value_rows(settings, shape, layout, piece)
    decodes = kinds[starts[-1]] > 0
    if decodes and (starts[-1] not in piece.blocks or layout.tp > 1 or _item(settings) == FP32):
        # Output of the encoder: received together with the decoder's stream, or the same for all blocks.
        streams += _stream(settings, shape, layout, lengths[0])
    recomputed = settings.parallel.activation_checkpointing != "none"
    for start, length in zip(starts, lengths, strict=True):
        if kinds[start] and family.head_tables:
            heads = (shape.heads + uneven_heads(shape, layout.tp).queries) // layout.tp
            biases = FP32 * heads if recomputed or _item(settings) == FP32 else 0
            streams += (INT64 + biases) * length**2
    return streams


def _value_rows(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece) -> float:
    """Bytes of the value embeddings of a micro-batch, which recomputation keeps as an input of the blocks."""
    if settings.parallel.activation_checkpointing == "none":
        return 0
    stages, tables = stages_of(piece, shape), _value_tables(shape)
    width = sum(columns * sum(on_stage(name, shape, blocks) for blocks in stages) for name, columns in tables)
    return _item(settings) * layout.micro_batch * settings.model.context * width / layout.tp


@cache
def _value_tables(shape: Shape) -> list[tuple[str, int]]:
    """Names and widths of the value embeddings."""
    return [(name, size[1]) for name, size in sizes(shape).items() if is_value_table(name, shape)]


def _backward_bytes(settings: TrainSettings, shape: Shape, layout: Layout, start: int) -> float:
    """Bytes of the gradients inside of a block: of the stream, and before and after the activation of the MLP.

    The first of the latter takes the place of the output of a GELU, which is no longer needed.
    """
    matrices = {f"blocks.{start}.{name}": size for name, size in block_sizes(shape, start).items() if len(size) > 1}
    wide = max(size[1] for name, size in matrices.items() if is_residual(name, shape))
    length = _length(settings, shape, start)
    number = 1 if MODELS[shape.family].more_saved(shape) == 0 else 2
    tokens = layout.micro_batch * length
    split = number * _item(settings) * tokens * wide / layout.tp
    if settings.device == "cpu" and MODELS[shape.family].head_tables and not settings.model.dropout:
        heads = shape.heads + uneven_heads(shape, layout.tp).queries
        split += FP32 * heads * tokens * length / layout.tp  # gradients of the scores
    return split + _stream(settings, shape, layout, length)


def _logit_bytes(settings: TrainSettings, shape: Shape, layout: Layout) -> float:
    """Bytes of the logits of one or two chunks of tokens, and of a copy of the head in half precision.

    With a soft cap also the slopes of one chunk. Compiled code has all in the precision of the products.
    """
    vocab, item = shape.padded_vocab // layout.tp, _item(settings)
    tokens = layout.micro_batch * _lengths(settings, shape)[-1]
    if _is_compiled(settings) and layout.tp == 1:
        # Logits and their gradient, the head, and its gradient by each chunk, which are added at the end.
        rows = settings.performance.loss_chunk
        alive = 2 * min(tokens, rows) + shape.hidden * (1 + math.ceil(tokens / rows))
        return item * alive * vocab
    rows = LOGIT_CHUNK["cpu" if settings.device == "cpu" else "cuda"] * layout.tp
    alive = min(tokens, 2 * rows)  # the chunk before is freed when the next one replaces it
    copies = HALF * (alive + shape.hidden) * vocab if item == HALF else 0
    slopes = min(tokens, rows) if dict(shape.options).get("logit_softcap") else 0
    return FP32 * (alive + slopes) * vocab + copies


def _transferred_bytes(settings: TrainSettings, shape: Shape, layout: Layout, piece: Piece, rank: int) -> float:
    """Bytes for what a pipeline rank receives and sends.

    torch allocates buffers for all micro-batches at the start of a step. What is sent to the next stage is kept until
    its gradient has come, and one gradient is on its way back. A stage of a decoder passes on the encoder's output too.
    """
    if layout.pp == 1:
        return 0
    stages, lengths = settings.parallel.virtual_pipeline_stages, _lengths(settings, shape)
    decoder = MODELS[shape.family].first_blocks(shape)[-1]
    before = stages - (rank == 0)  # stages of the rank with one before them
    after = stages - (rank == layout.pp - 1)
    received = lengths[0] if len(lengths) == 1 or piece.blocks[0] <= decoder else sum(lengths)
    sent = lengths[0] if len(lengths) == 1 or piece.blocks[-1] < decoder else sum(lengths)
    tokens = float(layout.accumulation * (before * received + after * sent))
    tokens += in_flight(settings, layout, rank) * after * sent + (before > 0) * received
    return _item(settings) * layout.micro_batch * tokens * shape.hidden / _slices(settings, layout)


def _length(settings: TrainSettings, shape: Shape, start: int) -> int:
    """Tokens per sample of the blocks of a kind, by the first block of that kind."""
    starts, lengths = MODELS[shape.family].first_blocks(shape), _lengths(settings, shape)
    return lengths[starts.index(start)] if len(lengths) > 1 else lengths[0]


def _lengths(settings: TrainSettings, shape: Shape) -> tuple[int, ...]:
    """Tokens per sample of each sequence; a model may have more positions than samples have tokens."""
    return settings.model.context, *MODELS[shape.family].lengths(shape)[1:]


def _stream(settings: TrainSettings, shape: Shape, layout: Layout, length: int) -> float:
    """Bytes of the residual stream of a micro-batch."""
    item = HALF if settings.has_half_stream(on_gpu=settings.device != "cpu") else FP32
    return item * layout.micro_batch * length * shape.hidden / _slices(settings, layout)


def _is_compiled(settings: TrainSettings) -> bool:
    """Return True if the run is compiled on a GPU."""
    return settings.performance.compile != "off" and settings.device != "cpu"


def _item(settings: TrainSettings) -> int:
    """Bytes of a number in the precision of the products."""
    return FP32 if settings.precision == "fp32" else HALF


def _mask_item(settings: TrainSettings) -> int:
    """Bytes of a number of a dropout mask."""
    return _item(settings) if settings.device == "cpu" else 1


def _slices(settings: TrainSettings, layout: Layout) -> int:
    """Number of slices of a sequence outside attention and MLP."""
    return layout.tp if layout.tp > 1 and settings.parallel.sequence_parallel else 1
