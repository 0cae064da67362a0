"""Search over all parallel layouts of a model on a number of GPUs."""

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
NEAR_BEST = 1.03  # times the shortest step time; within it the candidate with the least memory is chosen


@dataclass(frozen=True)
class Candidate:
    """Possible layout and its costs.

    Attributes:
        settings: settings of the run, with this layout in them.
        layout: layout of all ranks.
        memory: peak memory of the rank that needs most.
        duration: expected step time.
        parameters: number of parameters of each pipeline rank.
    """

    settings: TrainSettings
    layout: Layout
    memory: Memory
    duration: Duration
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Result of a search.

    Attributes:
        fits: candidates, fastest first; for each (tp, pp, ZeRO, offload) the best micro-batch and checkpointing.
        refused: reasons of excluded combinations with their number, most frequent first.
    """

    fits: list[Candidate]
    refused: list[tuple[str, int]]


def search(settings: TrainSettings, shape: Shape, hardware: Hardware) -> Plan:
    """Evaluate all layouts.

    Args:
        settings: model, global batch and precision; the layout in the settings is ignored.
        shape: shape of the model.
        hardware: GPUs and their speeds.
    """
    refused: Counter[str] = Counter()
    by_layout: defaultdict[tuple[int, int, int, bool], list[Candidate]] = defaultdict(list)
    available = hardware.memory * GB * (1 - hardware.reserve)
    for changes, micro in itertools.product(_layouts(hardware, refused), MICRO_BATCHES):
        parallel = settings.parallel.model_copy(update=changes)
        batch = settings.batch.model_copy(update={"micro_batch": micro, "gradient_accumulation_steps": 0})
        candidate_settings = settings.model_copy(update={"parallel": parallel, "batch": batch})
        try:
            layout = Layout.of(candidate_settings, hardware.gpus)
            candidate = _evaluate(candidate_settings, shape, layout, pieces(candidate_settings, shape), hardware)
        except UserError as error:
            refused[str(error).split(";")[0]] += 1
            continue
        if candidate.memory.device > available:
            offload = ", offload" if parallel.cpu_offload else ""
            name = f"tp {parallel.tp} x pp {parallel.pp}, ZeRO {parallel.zero}{offload}"
            refused[f"{name}: more than {available / GB:.1f} GB"] += 1
            continue
        by_layout[(parallel.tp, parallel.pp, parallel.zero, parallel.cpu_offload)].append(candidate)
    return Plan(sorted(map(_best, by_layout.values()), key=_order), refused.most_common())


def _best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate with the least memory among those almost as fast as the fastest."""
    limit = min(one.duration.total for one in candidates) * NEAR_BEST
    return min((one for one in candidates if one.duration.total <= limit), key=lambda one: one.memory.device)


def _order(candidate: Candidate) -> tuple[float, float, int]:
    """Return the sort key: step time to 0.1 ms, then simplicity of the layout, then memory."""
    p = candidate.settings.parallel
    return (round(candidate.duration.total, 4), p.tp * p.pp + p.zero + 10 * p.cpu_offload, candidate.memory.device)


def _layouts(hardware: Hardware, refused: Counter[str]) -> Iterator[dict[str, object]]:
    """Yield the parallel settings of each layout."""
    sizes = [n for n in range(1, hardware.gpus + 1) if hardware.gpus % n == 0]
    for tp, pp in itertools.product(sizes, sizes):
        if hardware.gpus % (tp * pp):
            continue
        if tp > hardware.gpus_per_node:
            refused[f"tp {tp} is more than the {hardware.gpus_per_node} GPUs of a machine"] += 1
            continue
        data = hardware.gpus // (tp * pp)
        for zero, offload, recompute in itertools.product((0, 1, 2, 3), (False, True), RECOMPUTE):
            if data == 1 and zero != (3 if offload else 0):
                continue  # nothing to shard; offload behaves as ZeRO 3 at every stage and is listed once
            yield {
                "tp": tp,
                "pp": pp,
                "zero": zero,
                "dp_shard_degree": 0,
                "cpu_offload": offload,
                "schedule": "1f1b",
                "virtual_pipeline_stages": 1,
                "activation_checkpointing": recompute,
            }


def _evaluate(
    settings: TrainSettings, shape: Shape, layout: Layout, parts: list[Piece], hardware: Hardware
) -> Candidate:
    memories = [peak(settings, shape, layout, piece, rank) for rank, piece in enumerate(parts)]
    return Candidate(
        settings,
        layout,
        max(memories, key=lambda memory: memory.device),
        step_time(settings, shape, layout, parts, hardware),
        tuple(parameters(piece, shape, layout.tp) for piece in parts),
    )
