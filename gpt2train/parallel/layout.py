"""Parallel layout: sizes of the mesh dimensions, coordinates of ranks, and validation. Imports no torch.

    world = pp x replicate x shard x tp        data-parallel processes = replicate x shard

Ranks are ordered with tp innermost, then shard, then replicate, then pp, so that the processes of a tensor-parallel
group, which communicate most, are on the same machine.
"""

import math
from dataclasses import dataclass
from functools import cache

from gpt2train.config import RampUp, TrainSettings
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.errors import UserError
from gpt2train.model.families import MODELS, shard_dim, sizes
from gpt2train.model.shape import PADDING, Shape
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.store.counts import count_of

FP8_MULTIPLE = 16  # of the sizes of the factors of a product in 8 bits on a GPU


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of a rank in the mesh."""

    pp: int
    replicate: int
    shard: int
    tp: int


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh dimensions, and batch sizes."""

    pp: int
    replicate: int
    shard: int
    tp: int
    micro_batch: int
    global_batch: int
    accumulation: int
    ramp_up: RampUp | None = None

    @property
    def batches(self) -> BatchPlan:
        """Batch sizes over the run."""
        return BatchPlan(self.global_batch, self.ramp_up)

    @property
    def data(self) -> int:
        """Number of data-parallel processes."""
        return self.replicate * self.shard

    @property
    def world(self) -> int:
        """World size."""
        return self.pp * self.data * self.tp

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a rank in the mesh."""
        rest, tp = divmod(rank, self.tp)
        rest, shard = divmod(rest, self.shard)
        pp, replicate = divmod(rest, self.replicate)
        return Coordinates(pp, replicate, shard, tp)

    def data_rank(self, rank: int) -> int:
        """Data-parallel rank of a rank, 0 … data - 1, which determines its samples."""
        at = self.coordinates(rank)
        return at.replicate * self.shard + at.shard

    def __str__(self) -> str:
        hybrid = f" ({self.replicate} x {self.shard})" if self.replicate > 1 and self.shard > 1 else ""
        return f"tp {self.tp} x pp {self.pp} x dp {self.data}{hybrid}"

    @staticmethod
    def of(settings: TrainSettings, world: int) -> "Layout":
        """Layout of a training run on a number of processes.

        Raises:
            UserError: it does not fit the processes, the model or the batch; the message shows the arithmetic.
        """
        p, model = settings.parallel, settings.model
        data, rest = divmod(world, p.tp * p.pp)
        if rest or not data:
            raise UserError(
                f"tp {p.tp} x pp {p.pp} = {p.tp * p.pp} does not divide the {count_of(world, 'process')}; "
                "change parallel.tp, parallel.pp or the number of processes"
            )
        shard = 1 if p.zero == 0 else p.dp_shard_degree or data
        if p.dp_shard_degree and p.zero == 0:
            raise UserError(f"parallel.dp_shard_degree {p.dp_shard_degree} needs parallel.zero 1-3; 0 shards nothing")
        if data % shard:
            raise UserError(
                f"parallel.dp_shard_degree {shard} does not divide the {data} data-parallel processes "
                f"({world} / (tp {p.tp} x pp {p.pp}))"
            )
        shape = model.shape(PADDING)
        _check_tensor_parallel(shape, p.tp, "parallel.tp")
        lengths = {f"model.context {model.context}": model.context}
        lengths |= {f"the {length} tokens of the decoder": length for length in MODELS[model.family].lengths(shape)[1:]}
        for what, length in lengths.items():
            if p.sequence_parallel and length % p.tp:
                raise UserError(f"parallel.tp {p.tp} does not divide {what}; set parallel.sequence_parallel = false")
        _check_pipeline(settings)
        micro, whole, accumulation = settings.batch.sizes(data)
        layout = Layout(p.pp, data // shard, shard, p.tp, micro, whole, accumulation, settings.batch.ramp_up)
        for size in layout.batches.sizes():
            _check_micro_batches(settings, layout, size)
        if settings.performance.fp8 != "off":
            _check_fp8(settings, micro)
        return layout

    @staticmethod
    def of_model(shape: Shape, tp: int, pp: int, world: int) -> "Layout":
        """Layout for inference with a model that is split over a number of processes.

        Raises:
            UserError: it does not fit the processes or the model; the message shows the arithmetic.
        """
        if tp < 1 or pp < 1:
            raise UserError(f"--tp {tp} --pp {pp}: both must be at least 1")
        if tp * pp != world:
            raise UserError(f"--tp {tp} x --pp {pp} = {tp * pp} processes, but there are {world}; start {tp * pp}")
        if len(MODELS[shape.family].lengths(shape)) > 1 and pp > 1:
            raise UserError(f"model family {shape.family} generates on one pipeline stage, not on {pp}; leave out --pp")
        _check_tensor_parallel(shape, tp, "--tp")
        if pp > shape.layers:
            raise UserError(f"--pp {pp} stages, but the model has {shape.layers} layers; give {shape.layers} or fewer")
        return Layout(pp, 1, 1, tp, 1, 1, 1)


def _check_tensor_parallel(shape: Shape, tp: int, option: str) -> None:
    """Check that tensor parallelism can split a model; the message has the degrees that are possible.

    A degree need not divide the heads (`gpt2train.parallel.head_split`), but each process has at least one.
    """
    divided = _split_sizes(shape)
    if tp > shape.heads:
        reason = f"{option} {tp} is more than the model's {shape.heads} heads"
    elif odd := next((what for what, size in divided.items() if size % tp), None):
        reason = f"{option} {tp} does not divide {odd}"
    else:
        return
    common = math.gcd(*divided.values())
    degrees = ", ".join(str(degree) for degree in range(1, min(common, shape.heads) + 1) if common % degree == 0)
    raise UserError(f"{reason}; for this model it can be {degrees}")


@cache
def _split_sizes(shape: Shape) -> dict[str, int]:
    """Sizes that tensor parallelism splits evenly, by their names in messages."""
    found = {}
    kinds = tuple(f"blocks.{block}." for block in MODELS[shape.family].first_blocks(shape))
    for name, size in sizes(shape).items():
        if name.startswith(kinds) and (dim := shard_dim(name, shape)) is not None:
            found[f"the size {size[dim]} of {name}"] = size[dim]
    return found | {f"{PADDING}, to which the vocabulary is padded": PADDING}


def _check_fp8(settings: TrainSettings, micro: int) -> None:
    """Check that all factors of products in 8 bits have sizes that a GPU can multiply; on a CPU too, by the same rule.

    They are the tokens of a micro-batch, and the widths of the linear layers of the blocks on a process.
    """
    tp, shape = settings.parallel.tp, settings.model.shape(PADDING)
    need = f"performance.fp8 {settings.performance.fp8!r} needs sizes that are multiples of {FP8_MULTIPLE}, but"
    off = 'or set performance.fp8 = "off"'
    for length in (settings.model.context, *MODELS[shape.family].lengths(shape)[1:]):
        if micro * length % FP8_MULTIPLE:
            tokens = f"{micro} x {length} tokens = {micro * length}"
            raise UserError(f"{need} a micro-batch has {tokens}; change batch.micro_batch, {off}")
    uneven = not HeadSplit.of(shape, tp).even
    if uneven and shape.head_dim % FP8_MULTIPLE:
        raise UserError(f"{need} parallel.tp {tp} splits whole heads of {shape.head_dim}; change parallel.tp, {off}")
    kinds = tuple(f"blocks.{block}." for block in MODELS[shape.family].first_blocks(shape))
    for parameter, size in sizes(shape).items():
        split = shard_dim(parameter, shape, tp)
        for dim, width in enumerate(size if parameter.startswith(kinds) and len(size) > 1 else ()):
            part = width // tp if dim == split else width
            if part % FP8_MULTIPLE and not (uneven and dim == split and width % shape.head_dim == 0):
                of, change = (f" / parallel.tp {tp} = {part}", " or parallel.tp") if part != width else ("", "")
                raise UserError(f"{need} {parameter} has {width}{of}; change the model{change}, {off}")


def _check_micro_batches(settings: TrainSettings, layout: Layout, size: int) -> None:
    """Check that steps of `size` samples have enough micro-batches for the pipeline."""
    p, micro, data = settings.parallel, layout.micro_batch, layout.data
    micro_batches = size // (micro * data)
    if p.pp > 1 and micro_batches < p.pp:
        raise UserError(
            f"a pipeline of {p.pp} stages needs at least {p.pp} micro-batches per step, but a batch of {size} = "
            f"micro_batch {micro} x dp {data} x {micro_batches}; lower batch.micro_batch"
        )
    if p.schedule == "interleaved" and micro_batches % p.pp:
        raise UserError(
            f"the interleaved schedule needs a multiple of pp {p.pp} micro-batches per step, not {micro_batches} "
            f"(a batch of {size} / (micro_batch {micro} x dp {data}))"
        )


def _check_pipeline(settings: TrainSettings) -> None:
    p, layers = settings.parallel, settings.model.layers
    if p.schedule == "interleaved" and (p.virtual_pipeline_stages < 2 or p.pp < 2):
        raise UserError(
            "the interleaved schedule needs parallel.pp and parallel.virtual_pipeline_stages above 1, "
            f"not {p.pp} and {p.virtual_pipeline_stages}"
        )
    if p.schedule != "interleaved" and p.virtual_pipeline_stages > 1:
        raise UserError(
            f"parallel.virtual_pipeline_stages {p.virtual_pipeline_stages} needs parallel.schedule = 'interleaved'; "
            f"{p.schedule!r} has one stage per process"
        )
    if p.pp * p.virtual_pipeline_stages > layers:
        raise UserError(
            f"pp {p.pp} x virtual_pipeline_stages {p.virtual_pipeline_stages} = "
            f"{p.pp * p.virtual_pipeline_stages} stages, but there are only {layers} layers"
        )
