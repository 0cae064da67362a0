"""Kinds of ranks of a layout, and the steps of all of them from the simulation of a few.

The ranks of a pipeline stage do the same on other data and other shards, of which the first rank's are the largest, so
that a stage is a kind. If the tensor-parallel degree does not divide the heads, the first rank with the most of them
stands for all. Stages with equal parts of the model differ in the order of their passes alone: one of them is
simulated, with few micro-batches (`gpt2train.simulate.schedule`).
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from gpt2train.config import RunConfig
from gpt2train.model.families import MODELS, on_stage, sizes
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.simulate.rank import RankStep, ShortStep, simulate_rank
from gpt2train.simulate.schedule import SHORT, Kind, known, peak, repeated_passes


@dataclass(frozen=True)
class RankKind:
    """Ranks that do the same."""

    stage: int  # pipeline rank
    rank: int  # first of these ranks that needs the most memory, or the one asked for
    ranks: int  # number of these ranks
    blocks: tuple[int, ...]  # numbers of the blocks of each of them
    step: RankStep  # costs of its step


def all_kinds(config: RunConfig, world: int) -> list[RankKind]:
    """Simulate a step of every kind of ranks.

    Raises:
        UserError: the layout does not fit the ranks, the model or the batch.
    """
    layout = Layout.of(config, world)
    short: dict[Hashable, RankStep] = {}
    kinds = []
    for stage in range(layout.pp):
        part = _part(config, layout, stage)
        if part not in short:
            settled, step = _short(config, layout, stage)
            short[part] = simulate_rank(settled, world, _first_rank(config, layout, stage), step)
        kinds.append(_kind(config, layout, stage, _whole(config, layout, stage, short[part])))
    return kinds


def kind_of(config: RunConfig, world: int, rank: int) -> RankKind:
    """Simulate a step of one rank; the result has its own costs, also where its shards are smaller."""
    layout = Layout.of(config, world)
    stage = layout.coordinates(rank).pp
    settled, short = _short(config, layout, stage)
    step = _whole(config, layout, stage, simulate_rank(settled, world, rank, short))
    return replace(_kind(config, layout, stage, step), rank=rank)


def _kind(config: RunConfig, layout: Layout, stage: int, step: RankStep) -> RankKind:
    blocks = tuple(block for blocks in _blocks(config, layout, stage) for block in blocks)
    return RankKind(stage, _first_rank(config, layout, stage), layout.world // layout.pp, blocks, step)


def _first_rank(config: RunConfig, layout: Layout, stage: int) -> int:
    return stage * (layout.world // layout.pp) + HeadSplit.of(config.shape, layout.tp).fullest


def _blocks(config: RunConfig, layout: Layout, stage: int) -> list[range]:
    """Blocks of each stage of a pipeline rank."""
    return stage_layers(config.shape, layout.pp * config.parallel.virtual_pipeline_stages)[stage :: layout.pp]


def _part(config: RunConfig, layout: Layout, stage: int) -> Hashable:
    """Part of the model of a pipeline rank; equal for ranks whose passes cost the same."""
    shape = config.shape
    starts = MODELS[shape.family].first_blocks(shape)
    edges = {0, shape.layers - 1, *starts, *(start - 1 for start in starts[1:])}  # where a sequence begins or ends
    parts = []
    for blocks in _blocks(config, layout, stage):
        kinds = tuple(sum(start <= block for start in starts) for block in blocks)
        outside = [name for name in sizes(shape) if not name.startswith("blocks.") and on_stage(name, shape, blocks)]
        parts.append((kinds, tuple(outside), tuple(block - blocks.start for block in blocks if block in edges)))
    return tuple(parts)


def _whole(config: RunConfig, layout: Layout, stage: int, step: RankStep) -> RankStep:
    """Return a whole step from a short one."""
    if step.profile is None or step.pass_counts is None:
        return step
    p, number = config.parallel, layout.accumulation
    order = repeated_passes(p.schedule, layout.pp, p.virtual_pipeline_stages, number, stage)
    made = Counter[Kind]()
    for period, repeated in order:
        made.update({kind: times * repeated for kind, times in Counter(period).items()})
    counts = step.pass_counts.outside.plus(step.pass_counts.sent, number)
    for kind, times in made.items():
        counts = counts.plus(known(step.pass_counts.passes, kind), times)
    return replace(step, memory=peak(step.profile, order, number), counts=counts)


def _short(config: RunConfig, layout: Layout, stage: int) -> tuple[RunConfig, ShortStep | None]:
    """Settings after the ramp-up of the batch, and a short step that has every kind of pass of the whole one."""
    batch = {"micro_batch": layout.micro_batch, "global_batch": layout.global_batch, "ramp_up": None}
    settled = config.model_copy(update={"batch": config.batch.model_copy(update=batch)})
    p, number = config.parallel, layout.accumulation
    if layout.pp == 1:
        return settled, None
    if p.schedule == "gpipe":
        return settled, ShortStep(min(number, SHORT))
    if p.schedule == "interleaved":
        # Blocks that are gathered anew for each pass make passes depend on the ones before.
        return settled, ShortStep(min(number, 3 * layout.pp) if p.zero == 3 or p.offloads_weights else SHORT)
    depth = min(layout.pp - stage, number)
    return settled, ShortStep(min(depth, SHORT) + min(number - depth, SHORT), min(depth, SHORT))
