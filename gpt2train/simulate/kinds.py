"""Kinds of ranks of a layout, and the steps of all of them from the simulation of a few.

The ranks of a pipeline stage do the same on other data and other shards, of which the first rank's are the largest, so
that a stage is a kind. Two more things save work, and tests/gpt2train/simulate/test_kinds.py holds both against the
whole simulation:

* From `pp` + 2 micro-batches on (interleaved: 2 x `pp`), each further one adds the same: its collectives and FLOPs, and
  the buffers that torch's pipeline receives into, one for each micro-batch.
* Of the stages between the first and the last one that have equally many blocks, each keeps the activations of one
  micro-batch less than the one before it (1F1B), or of equally many (GPipe).
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpt2train.config import RunConfig
from gpt2train.model.families import MODELS
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.simulate.rank import RankStep, simulate_rank
from gpt2train.simulate.recorder import CATEGORIES, Counts


@dataclass(frozen=True)
class RankKind:
    """Ranks that do the same.

    Attributes:
        stage: pipeline rank.
        rank: first of these ranks, which needs the most memory.
        ranks: number of these ranks.
        blocks: numbers of the blocks of each of them.
        step: costs of its step.
    """

    stage: int
    rank: int
    ranks: int
    blocks: tuple[int, ...]
    step: RankStep


def all_kinds(config: RunConfig, world: int) -> list[RankKind]:
    """Simulate a step of every kind of ranks.

    Raises:
        UserError: the layout does not fit the ranks, the model or the batch.
    """
    layout = Layout.of(config, world)
    steps: dict[int, RankStep] = {}
    for stages in _alike(config, layout):
        ends = sorted({stages[0], stages[-1]})
        for stage in ends:
            steps[stage] = _of_stage(config, layout, stage)
        for stage in stages[1:-1]:
            share = (stage - ends[0]) / (ends[1] - ends[0])
            steps[stage] = _between(steps[ends[0]], steps[ends[1]], share)
    return [_kind(config, layout, stage, steps[stage]) for stage in range(layout.pp)]


def kind_of(config: RunConfig, world: int, rank: int) -> RankKind:
    """Simulate a step of one rank; the result has its own costs, also where its shards are smaller."""
    layout = Layout.of(config, world)
    stage = layout.coordinates(rank).pp
    step = _extrapolated(config, layout, stage, lambda changed: simulate_rank(changed, world, rank))
    found = _kind(config, layout, stage, step)
    return RankKind(stage, rank, found.ranks, found.blocks, step)


def _kind(config: RunConfig, layout: Layout, stage: int, step: RankStep) -> RankKind:
    size = layout.world // layout.pp
    virtual = config.parallel.virtual_pipeline_stages
    ranges = stage_layers(config.shape, layout.pp * virtual)[stage :: layout.pp]
    return RankKind(stage, stage * size, size, tuple(block for blocks in ranges for block in blocks), step)


def _alike(config: RunConfig, layout: Layout) -> list[list[int]]:
    """Group the stages: those between the first and the last one that have equally many blocks of one kind."""
    pp, virtual = layout.pp, config.parallel.virtual_pipeline_stages
    if pp <= 3 or virtual > 1 or len(MODELS[config.model.family].first_blocks(config.shape)) > 1:
        return [[stage] for stage in range(pp)]
    counts = [len(layers) for layers in stage_layers(config.shape, pp)]
    middle = [[s for s in range(1, pp - 1) if counts[s] == count] for count in sorted({*counts[1:-1]})]
    return [[0], *middle, [pp - 1]]


def _of_stage(config: RunConfig, layout: Layout, stage: int) -> RankStep:
    rank = stage * (layout.world // layout.pp)
    return _extrapolated(config, layout, stage, lambda changed: simulate_rank(changed, layout.world, rank))


def _extrapolated(config: RunConfig, layout: Layout, stage: int, simulate: Callable[[RunConfig], RankStep]) -> RankStep:
    """Simulate a stage with two small numbers of micro-batches, and add what each further one adds."""
    interleaved = config.parallel.schedule == "interleaved"
    few, more = (2 * layout.pp, layout.pp) if interleaved else (layout.pp + 2, 1)
    if layout.pp == 1 or layout.accumulation <= few + more:
        return simulate(_with_micro_batches(config, layout, layout.accumulation))
    first, second = (simulate(_with_micro_batches(config, layout, number)) for number in (few, few + more))
    times = (layout.accumulation - few) // more
    added = second.counts.plus(first.counts, -1)
    memory = {name: first.memory[name] + times * (second.memory[name] - first.memory[name]) for name in CATEGORIES}
    return RankStep(memory, first.counts.plus(added, times), first.parameters)


def _with_micro_batches(config: RunConfig, layout: Layout, number: int) -> RunConfig:
    """Settings with another number of micro-batches in a step, and without a ramp-up to it."""
    sizes = {
        "micro_batch": layout.micro_batch,
        "global_batch": layout.micro_batch * layout.data * number,
        "gradient_accumulation_steps": number,
        "ramp_up": None,
    }
    return config.model_copy(update={"batch": config.batch.model_copy(update=sizes)})


def _between(first: RankStep, last: RankStep, share: float) -> RankStep:
    """Interpolate the memory; the collectives and FLOPs are equal."""
    memory = {name: round(first.memory[name] + share * (last.memory[name] - first.memory[name])) for name in CATEGORIES}
    return RankStep(memory, Counts(first.counts.calls, first.counts.bytes, first.counts.flops), first.parameters)
