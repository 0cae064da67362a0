"""Search over all parallel layouts of a model on a number of GPUs."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from gpt2train.config import ParallelSettings, TrainSettings
from gpt2train.errors import UserError
from gpt2train.model.shape import PADDING, Shape
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.layout import Layout
from gpt2train.plan.duration import Duration, step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import Memory, peak
from gpt2train.plan.parameters import Piece, parameters, pieces
from gpt2train.settings import PositiveNumber, Settings, build

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
OFFLOADS = ("none", "optimizer", "auto", "all")
RECOMPUTE = ("none", "selective", "full")
SMALLEST_CHUNK = 8_192  # rows of logits below which their products are slow (`gpt2train.model.shape`)
NEAR_BEST = 0.97  # of the most tokens per second; above it the candidate with the least memory is chosen


class GivenLayout(Settings):
    """Layout that a plan is asked for; what is not given is searched."""

    tp: PositiveNumber | None = None
    """Tensor-parallel processes."""
    pp: PositiveNumber | None = None
    """Pipeline-parallel processes."""
    zero: int | None = Field(None, ge=0, le=3)
    """ZeRO stage, 0 to 3."""
    micro_batch: PositiveNumber | None = None
    """Samples per forward pass of a process."""
    activation_checkpointing: Literal["none", "selective", "full"] | None = None
    """Recomputed activations."""


ANY_LAYOUT = GivenLayout()


@dataclass(frozen=True)
class Candidate:
    """Possible layout and its costs.

    Attributes:
        settings: settings of the run, with this layout in them.
        layout: layout of all ranks.
        memory: peak memory of the rank that needs most.
        duration: expected step time.
        parameters: number of parameters of each pipeline rank.
        memories: peak memory of each pipeline rank.
        simulated: bytes by category of each pipeline rank, by a simulated step, and what compilation changes; empty
            without simulation.
        on_device: bytes on the device of each pipeline rank, by the same.
    """

    settings: TrainSettings
    layout: Layout
    memory: Memory
    duration: Duration
    parameters: tuple[int, ...]
    memories: tuple[Memory, ...]
    simulated: tuple[dict[str, int], ...] = ()
    on_device: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.layout.global_batch * self.settings.model.context / self.duration.total

    @property
    def device(self) -> int:
        """Bytes on the device of the rank that needs most."""
        return max(self.on_device, default=self.memory.device)

    @property
    def key(self) -> tuple[int, int, int, str]:
        """What is a layout of its own; micro-batch and recomputation are chosen for each."""
        p = self.settings.parallel
        return (p.tp, p.pp, p.zero, offload_of(p))


@dataclass(frozen=True)
class Plan:
    """Result of a search.

    Attributes:
        fits: candidates, fastest first; for each (tp, pp, ZeRO, offload) the best micro-batch and checkpointing.
        refused: reasons of excluded combinations with their number, most frequent first.
        all_fits: all candidates, those of `fits` among them.
    """

    fits: list[Candidate]
    refused: list[tuple[str, int]]
    all_fits: list[Candidate]

    def others_of(self, candidate: Candidate) -> list[Candidate]:
        """Return the candidates of the same layout with all micro-batches and recomputations."""
        return [one for one in self.all_fits if one.key == candidate.key]

    def largest_of(self, candidate: Candidate, hardware: Hardware) -> Candidate:
        """Return the candidate of the same layout and recomputation with the largest micro-batch that fits."""
        mode, available = candidate.settings.parallel.activation_checkpointing, available_bytes(hardware)
        others = [one for one in self.others_of(candidate) if one.memory.device <= available]
        same = [one for one in others if one.settings.parallel.activation_checkpointing == mode]
        return max([candidate, *same], key=lambda one: one.layout.micro_batch)


def available_bytes(hardware: Hardware) -> float:
    """Return the bytes of a device that a rank may use."""
    return hardware.memory * GB * (1 - hardware.reserve)


def search(
    settings: TrainSettings,
    shape: Shape,
    hardware: Hardware,
    given: GivenLayout = ANY_LAYOUT,
    tolerance: float = 0.0,
) -> Plan:
    """Evaluate all layouts with the same global batch.

    Args:
        settings: model, batch and precision. Their layout is ignored, unless the global batch follows from it.
        shape: shape of the model.
        hardware: GPUs and their speeds.
        given: part of the layout that is not searched.
        tolerance: share of the available memory by which a layout may exceed it, since the formulas are that uncertain.
    """
    refused: Counter[str] = Counter()
    by_layout: defaultdict[tuple[int, int, int, str], list[Candidate]] = defaultdict(list)
    available = available_bytes(hardware)
    samples = _global_batch(settings, hardware, given)
    micro_batches = {given.micro_batch} if given.micro_batch else {*MICRO_BATCHES, settings.batch.micro_batch} - {0}
    for changes, micro in _layouts(hardware, given, refused, sorted(micro_batches), samples):
        parallel = settings.parallel.model_copy(update=changes)
        sizes = {"micro_batch": micro, "global_batch": samples, "gradient_accumulation_steps": 0}
        batch = settings.batch.model_copy(update=sizes)
        try:
            candidate_settings = build(TrainSettings, dict(settings), {"parallel": parallel, "batch": batch})
            layout = Layout.of(candidate_settings, hardware.gpus)
            parts = pieces(candidate_settings, shape)
            candidate = _evaluate(candidate_settings, shape, layout, parts, hardware, available)
            if candidate is not None and candidate.memory.device > available:
                candidate = with_smaller_chunk(candidate, shape, hardware) or candidate
        except UserError as error:
            refused[str(error).split(";")[0].split(", but a batch")[0].removeprefix("settings: ")] += 1
            continue
        if candidate is None:
            continue
        if candidate.memory.device > available * (1 + tolerance):
            offload = {"none": "", "all": ", offload"}.get(offload_of(parallel), f", offload {offload_of(parallel)}")
            name = f"tp {parallel.tp} x pp {parallel.pp}, ZeRO {parallel.zero}{offload}"
            refused[f"{name}: more than {available / GB:.1f} GB"] += 1
        else:
            by_layout[candidate.key].append(candidate)
    fits = sorted(map(best_of, by_layout.values()), key=order)
    return Plan(fits, refused.most_common(), list(itertools.chain.from_iterable(by_layout.values())))


def offload_of(parallel: ParallelSettings) -> str:
    """Return what is in CPU memory: none, optimizer, auto (part of the optimizer) or all."""
    return parallel.offload_placement if parallel.cpu_offload else "none"


def with_smaller_chunk(candidate: Candidate, shape: Shape, hardware: Hardware) -> Candidate | None:
    """Return the candidate with half as many logits at a time; None if it would not need less memory."""
    settings = candidate.settings
    rows = settings.performance.loss_chunk // 2
    if rows < SMALLEST_CHUNK or not candidate.memory.head:
        return None
    performance = settings.performance.model_copy(update={"loss_chunk": rows})
    settings = settings.model_copy(update={"performance": performance})
    parts, available = pieces(settings, shape), available_bytes(hardware)
    smaller = _evaluate(settings, shape, candidate.layout, parts, hardware, available)
    return smaller if smaller is not None and smaller.memory.device < candidate.memory.device else None


def best_of(candidates: list[Candidate]) -> Candidate:
    """Return the candidate with the least memory among those almost as fast as the fastest."""
    limit = max(one.rate for one in candidates) * NEAR_BEST
    return min((one for one in candidates if one.rate >= limit), key=lambda one: one.memory.device)


def order(candidate: Candidate) -> tuple[float, float, int]:
    """Return the sort key: most tokens per second as they are shown, then simplicity of the layout, then memory."""
    p = candidate.settings.parallel
    uneven = not HeadSplit.of(candidate.settings.model.shape(PADDING), p.tp).even
    simplicity = p.tp * p.pp + p.zero + 10 * p.cpu_offload + 10 * uneven
    return (-shown(candidate.rate), simplicity, candidate.memory.device)


def shown(rate: float) -> float:
    """Round tokens per second to four digits, in which layouts that differ in nothing that counts are equal."""
    return float(f"{rate:.4g}")


def _global_batch(settings: TrainSettings, hardware: Hardware, given: GivenLayout) -> int:
    """Return the samples per step of all layouts: where the settings leave them open, those of their own layout."""
    batch, p = settings.batch, settings.parallel
    if batch.global_batch:
        return batch.global_batch
    model_ranks = (given.tp or p.tp) * (given.pp or p.pp)
    processes = hardware.gpus if hardware.gpus % model_ranks else hardware.gpus // model_ranks
    sizes = {"ramp_up": None} | ({"micro_batch": given.micro_batch} if given.micro_batch else {})
    return batch.model_copy(update=sizes).sizes(processes)[1]


def _layouts(
    hardware: Hardware, given: GivenLayout, refused: Counter[str], micro_batches: list[int], samples: int
) -> Iterator[tuple[dict[str, object], int]]:
    """Yield the settings of each layout with the micro-batches that divide its share, or one for the reason."""
    sizes = [n for n in range(1, hardware.gpus + 1) if hardware.gpus % n == 0]
    recomputes = (given.activation_checkpointing,) if given.activation_checkpointing else RECOMPUTE
    for tp, pp in itertools.product((given.tp,) if given.tp else sizes, (given.pp,) if given.pp else sizes):
        if hardware.gpus % (tp * pp):
            if given.tp or given.pp:
                refused[f"tp {tp} x pp {pp} = {tp * pp} does not divide the {hardware.gpus} GPUs"] += 1
            continue
        if tp > hardware.gpus_per_node:
            refused[f"tp {tp} is more than the {hardware.gpus_per_node} GPUs of a machine"] += 1
            continue
        data = hardware.gpus // (tp * pp)
        fitting = [micro for micro in micro_batches if samples % (micro * data) == 0] or micro_batches[:1]
        for zero, offload, recompute in itertools.product((0, 1, 2, 3), OFFLOADS, recomputes):
            if given.zero is not None and zero != given.zero:
                continue
            if given.zero is None and data == 1 and zero != (3 if offload == "all" else 0):
                continue  # nothing to shard; offload behaves as ZeRO 3 at every stage and is listed once
            changes: dict[str, object] = {
                "tp": tp,
                "pp": pp,
                "zero": zero,
                "dp_shard_degree": 0,
                "cpu_offload": offload != "none",
                "offload_placement": "all" if offload == "none" else offload,
                "schedule": "1f1b",
                "virtual_pipeline_stages": 1,
                "activation_checkpointing": recompute,
            }
            yield from ((changes, micro) for micro in fitting)


def _evaluate(
    settings: TrainSettings, shape: Shape, layout: Layout, parts: list[Piece], hardware: Hardware, available: float
) -> Candidate | None:
    """Return the candidate; None for an automatic placement that is no other than one of the fixed ones."""
    memories = [peak(settings, shape, layout, piece, rank) for rank, piece in enumerate(parts)]
    resident = 0.0
    if offload_of(settings.parallel) == "auto":
        fractions = [(available - memory.device) / memory.on_cpu for memory in memories if memory.on_cpu]
        if not fractions or min(fractions) <= 0 or min(fractions) >= 1:
            return None
        resident = min(fractions)
        memories = [_filled(memory, available) for memory in memories]
    return Candidate(
        settings,
        layout,
        max(memories, key=lambda memory: memory.device),
        step_time(settings, shape, layout, parts, hardware, resident),
        tuple(parameters(piece, shape, layout.tp) for piece in parts),
        tuple(memories),
    )


def _filled(memory: Memory, available: float) -> Memory:
    """Return the memory of a rank whose device holds as much of the optimizer state as fits."""
    left = memory.on_cpu - min(memory.on_cpu, int(available - memory.device))
    return replace(memory, on_cpu=left, copies=memory.copies * left // memory.on_cpu)
