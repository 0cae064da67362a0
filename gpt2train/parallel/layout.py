"""Which process does what: the arithmetic of a layout, and the refusal of those that do not fit. No torch.

    world = pp x replicate x shard x tp        data-parallel processes = replicate x shard

Ranks count with tp innermost, then shard, then replicate, then pp: processes of one tensor-parallel group, which talk
most, are neighbours on a machine.
"""

from dataclasses import dataclass

from gpt2train.batch import BatchPlan
from gpt2train.config import RampUp, TrainSettings
from gpt2train.errors import UserError
from gpt2train.model.shape import PADDING, Shape


@dataclass(frozen=True)
class Coordinates:
    """Where a rank stands in each dimension of the mesh."""

    pp: int
    replicate: int
    shard: int
    tp: int


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh's dimensions, and the batch on them."""

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
        """Samples of each step."""
        return BatchPlan(self.global_batch, self.ramp_up)

    @property
    def data(self) -> int:
        """Data-parallel processes: each works on samples of its own."""
        return self.replicate * self.shard

    @property
    def world(self) -> int:
        """All processes."""
        return self.pp * self.data * self.tp

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        rest, tp = divmod(rank, self.tp)
        rest, shard = divmod(rest, self.shard)
        pp, replicate = divmod(rest, self.replicate)
        return Coordinates(pp, replicate, shard, tp)

    def data_rank(self, rank: int) -> int:
        """Which share of the samples a rank works on, 0 … data - 1."""
        at = self.coordinates(rank)
        return at.replicate * self.shard + at.shard

    def __str__(self) -> str:
        hybrid = f" ({self.replicate} x {self.shard})" if self.replicate > 1 and self.shard > 1 else ""
        return f"tp {self.tp} x pp {self.pp} x dp {self.data}{hybrid}"

    @staticmethod
    def of(settings: TrainSettings, world: int) -> "Layout":
        """The layout of a run on this many processes.

        Raises:
            UserError: it does not fit the processes, the model or the batch; the message gives the sum.
        """
        p, model = settings.parallel, settings.model
        data, rest = divmod(world, p.tp * p.pp)
        if rest or not data:
            raise UserError(
                f"tp {p.tp} x pp {p.pp} = {p.tp * p.pp} processes, but {world} were given, which is no multiple of it; "
                "change parallel.tp, parallel.pp or the number of processes"
            )
        shard = 1 if p.zero == 0 else p.shard or data
        if p.shard and p.zero == 0:
            raise UserError(f"parallel.shard {p.shard} needs parallel.zero 1, 2 or 3; with 0 nothing is sharded")
        if data % shard:
            raise UserError(
                f"parallel.shard {shard} does not divide the {data} data-parallel processes "
                f"({world} / (tp {p.tp} x pp {p.pp}))"
            )
        if model.heads % p.tp:
            raise UserError(f"parallel.tp {p.tp} does not divide model.heads {model.heads}")
        if PADDING % p.tp:
            raise UserError(f"parallel.tp {p.tp} does not divide {PADDING}, to which the vocabulary is padded")
        if p.tp > 1 and p.sequence_parallel and model.context % p.tp:
            raise UserError(
                f"parallel.tp {p.tp} does not divide model.context {model.context}; "
                "set parallel.sequence_parallel = false"
            )
        _check_pipeline(settings)
        micro, whole, turns = settings.batch.sizes(data)
        layout = Layout(p.pp, data // shard, shard, p.tp, micro, whole, turns, settings.batch.ramp_up)
        for size in layout.batches.sizes():
            _check_micro_batches(settings, layout, size)
        return layout

    @staticmethod
    def of_model(shape: Shape, tp: int, pp: int, world: int) -> "Layout":
        """The layout of a trained model that answers on this many processes, each with a part of it.

        Raises:
            UserError: it does not fit the processes or the model; the message gives the sum.
        """
        if tp < 1 or pp < 1:
            raise UserError(f"--tp {tp} --pp {pp}: give 1 or more of each")
        if tp * pp != world:
            raise UserError(f"--tp {tp} x --pp {pp} = {tp * pp} processes, but there are {world}; give one for each")
        if shape.heads % tp:
            raise UserError(f"--tp {tp} does not divide the model's {shape.heads} heads")
        if PADDING % tp:
            raise UserError(f"--tp {tp} does not divide {PADDING}, to which the vocabulary is padded")
        if pp > shape.layers:
            raise UserError(f"--pp {pp} stages, but the model has {shape.layers} layers; give {shape.layers} or fewer")
        return Layout(pp, 1, 1, tp, 1, 1, 1)


def _check_micro_batches(settings: TrainSettings, layout: Layout, size: int) -> None:
    """Whether steps of `size` samples keep the pipeline busy."""
    p, micro, data = settings.parallel, layout.micro_batch, layout.data
    turns = size // (micro * data)
    if p.pp > 1 and turns < p.pp:
        raise UserError(
            f"a pipeline of {p.pp} needs at least {p.pp} micro-batches a step, but a batch of {size} = "
            f"micro_batch {micro} x dp {data} x {turns}; lower batch.micro_batch"
        )
    if p.schedule == "interleaved" and turns % p.pp:
        raise UserError(
            f"the interleaved schedule needs a multiple of pp {p.pp} micro-batches a step, not {turns} "
            f"(a batch of {size} / (micro_batch {micro} x dp {data}))"
        )


def _check_pipeline(settings: TrainSettings) -> None:
    p, layers = settings.parallel, settings.model.layers
    if p.schedule == "interleaved" and (p.stages < 2 or p.pp < 2):
        raise UserError(
            f"the interleaved schedule needs parallel.pp and parallel.stages above 1, not {p.pp} and {p.stages}"
        )
    if p.schedule != "interleaved" and p.stages > 1:
        raise UserError(
            f"parallel.stages {p.stages} needs parallel.schedule = 'interleaved'; {p.schedule!r} has one a process"
        )
    if p.pp * p.stages > layers:
        raise UserError(f"pp {p.pp} x stages {p.stages} = {p.pp * p.stages} pieces, but there are {layers} layers")
