"""Every layout of a model on some GPUs, the best first, and why the others were left out."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gpt2train.config import TrainSettings
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.plan.duration import Duration, step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import Memory, peak
from gpt2train.plan.parameters import Piece, parameters, pieces

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
RECOMPUTE = ("none", "selective", "full")
ALMOST = 1.03  # times the fastest: not worth memory, of which a run can have too little for other reasons


@dataclass(frozen=True)
class Candidate:
    """A layout that is possible, and what it costs.

    Attributes:
        settings: the run's settings with this layout in them.
        memory: of the fullest rank.
        parameters: of each pipeline rank.
    """

    settings: TrainSettings
    layout: Layout
    memory: Memory
    duration: Duration
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What a search found.

    Attributes:
        fits: candidates, the fastest first; for each (tp, pp, ZeRO, offload) the fastest micro-batch and checkpointing.
        refused: why combinations were left out, with their number, the most frequent first.
    """

    fits: list[Candidate]
    refused: list[tuple[str, int]]


def search(settings: TrainSettings, shape: Shape, hardware: Hardware) -> Plan:
    """Look at all layouts.

    Args:
        settings: the model, the global batch and the precision; the layout in it is ignored.
    """
    refused: Counter[str] = Counter()
    fitting: defaultdict[tuple[int, int, int, bool], list[Candidate]] = defaultdict(list)
    room = hardware.memory * GB * (1 - hardware.reserve)
    for changes, micro in itertools.product(_layouts(hardware, refused), MICRO_BATCHES):
        parallel = settings.parallel.model_copy(update=changes)
        batch = settings.batch.model_copy(update={"micro_batch": micro, "accumulation": 0})
        tried = settings.model_copy(update={"parallel": parallel, "batch": batch})
        try:
            layout = Layout.of(tried, hardware.gpus)
            found = _weigh(tried, shape, layout, pieces(tried, shape), hardware)
        except UserError as error:
            refused[str(error).split(";")[0]] += 1
            continue
        if found.memory.device > room:
            name = f"tp {parallel.tp} x pp {parallel.pp}, ZeRO {parallel.zero}{', offload' if parallel.offload else ''}"
            refused[f"{name}: more than {room / GB:.1f} GB"] += 1
            continue
        fitting[(parallel.tp, parallel.pp, parallel.zero, parallel.offload)].append(found)
    return Plan(sorted(map(_best, fitting.values()), key=_order), refused.most_common())


def _best(candidates: list[Candidate]) -> Candidate:
    """Of those that are almost as fast as the fastest, the one that needs the least memory."""
    limit = min(one.duration.total for one in candidates) * ALMOST
    return min((one for one in candidates if one.duration.total <= limit), key=lambda one: one.memory.device)


def _order(candidate: Candidate) -> tuple[float, float, int]:
    """The fastest first; of those that are within 1 % the simplest, then the one that needs the least memory."""
    p = candidate.settings.parallel
    return (round(candidate.duration.total, 4), p.tp * p.pp + p.zero + 10 * p.offload, candidate.memory.device)


def _layouts(hardware: Hardware, refused: Counter[str]) -> Iterator[dict[str, object]]:
    """Changes to the parallel settings."""
    sizes = [n for n in range(1, hardware.gpus + 1) if hardware.gpus % n == 0]
    for tp, pp in itertools.product(sizes, sizes):
        if hardware.gpus % (tp * pp):
            continue
        if tp > hardware.gpus_per_node:
            refused[f"tp {tp} is more than the {hardware.gpus_per_node} GPUs of a machine"] += 1
            continue
        data = hardware.gpus // (tp * pp)
        for zero, offload, recompute in itertools.product((0, 1, 2, 3), (False, True), RECOMPUTE):
            if zero and data == 1:
                continue  # nothing to shard over
            yield {
                "tp": tp,
                "pp": pp,
                "zero": zero,
                "shard": 0,
                "offload": offload,
                "schedule": "1f1b",
                "stages": 1,
                "activation_checkpointing": recompute,
            }


def _weigh(settings: TrainSettings, shape: Shape, layout: Layout, parts: list[Piece], hardware: Hardware) -> Candidate:
    memories = [peak(settings, shape, layout, piece, rank) for rank, piece in enumerate(parts)]
    return Candidate(
        settings,
        layout,
        max(memories, key=lambda memory: memory.device),
        step_time(settings, shape, layout, parts, hardware),
        tuple(parameters(piece, shape, layout.tp) for piece in parts),
    )
