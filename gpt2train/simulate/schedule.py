"""Memory of a pipeline's schedule, put together from the forward and backward passes of a short one.

What a pass keeps or frees depends on little: the first and the last micro-batch of a stage differ from the others,
since they allocate and reduce the gradients, and a pass after a backward pass finds parameters gathered. So a run of
few micro-batches gives what every kind of pass keeps, and the most that it needs meanwhile; the order of the passes of
a schedule, of any number of micro-batches and at any place of the pipeline, gives the rest. Held against whole
simulations by tests/gpt2train/simulate/test_kinds.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Place = Literal["first", "middle", "last"]
Pass = tuple[bool, int]  # True for a forward pass; number of the stage among those of the rank
# A pass, place of its micro-batch, whether the pass before it through the same stage was forward, pass before it.
# ZeRO 3 leaves the blocks of a stage gathered after a backward pass.
Kind = tuple[Pass, Place, bool, Pass]
SHORT = 3  # micro-batches that have a first, a middle and a last one


@dataclass(frozen=True)
class PassMemory:
    """Change of the memory by one pass, in bytes of each category.

    Attributes:
        peak: change from the start of the pass to the moment with most memory.
        net: change from its start to its end.
    """

    peak: Mapping[str, int]
    net: Mapping[str, int]


@dataclass(frozen=True)
class Profile:
    """Memory of a rank in a step with few micro-batches, in bytes of each category.

    Attributes:
        micro_batches: number of micro-batches.
        start: memory before the first pass.
        kept: bytes that each micro-batch keeps from the start to the end: its batch, and buffers for what is received.
        passes: changes by each kind of pass.
        end: the most memory after the last pass.
    """

    micro_batches: int
    start: Mapping[str, int]
    kept: int
    passes: Mapping[Kind, PassMemory]
    end: Mapping[str, int]


def peak(profile: Profile, order: Iterable[Pass], micro_batches: int) -> dict[str, int]:
    """Return the bytes of each category when a schedule needs most.

    Args:
        profile: passes of the rank.
        order: passes of the schedule on the rank.
        micro_batches: number of micro-batches of the schedule.
    """
    level, best = _scaled(profile.start, profile, micro_batches), _scaled(profile.end, profile, micro_batches)
    for kind in kinds(order, micro_batches):
        change = known(profile.passes, kind)
        if sum(level.values()) + sum(change.peak.values()) > sum(best.values()):
            best = _sum(level, change.peak)
        level = _sum(level, change.net)
    return best


def kinds(order: Iterable[Pass], micro_batches: int) -> Iterator[Kind]:
    """Kind of each pass of an order."""
    done: Counter[Pass] = Counter()
    before: Pass = (True, 0)
    forward: dict[int, bool] = {}
    for one in order:
        index = done[one]
        place: Place = "first" if index == 0 else "last" if index == micro_batches - 1 else "middle"
        yield one, place, forward.get(one[1], True), before
        done[one] += 1
        before = one
        forward[one[1]] = one[0]


def known(found: Mapping[Kind, T], kind: Kind) -> T:
    """Look up a kind of pass, or the most similar one."""
    if kind in found:
        return found[kind]
    one, place, forward, before = kind
    alike = [other for other in found if other[:2] == (one, place)]
    return found[
        min(alike, key=lambda other: (other[2] != forward, other[3][0] != before[0], other[3][1] != before[1]))
    ]


def passes(schedule: str, pp: int, stages: int, micro_batches: int, rank: int) -> Iterator[Pass]:
    """Order of the passes of a schedule of `torch.distributed.pipelining` on one rank.

    Args:
        schedule: "1f1b", "gpipe" or "interleaved".
        pp: ranks of the pipeline.
        stages: stages of each rank.
        micro_batches: number of micro-batches.
        rank: pipeline rank.
    """
    total = micro_batches * stages
    if schedule == "gpipe":
        warm = total
    elif schedule == "1f1b":
        warm = min(total, pp - rank)
    else:
        warm = min(total, (stages - 1) * _round(pp, micro_batches) + 2 * (pp - 1 - rank))
    forward, backward = 0, 0
    for step in range(2 * total):
        # After the warm-up 1F1B goes backward first, and interleaved 1F1B forward.
        late = step - warm
        ahead = step < warm or (forward < total and late % 2 == (schedule != "interleaved"))
        if ahead:
            yield True, _stage(forward, stages, pp, micro_batches)
            forward += 1
        else:
            yield False, stages - 1 - _stage(backward, stages, pp, micro_batches)
            backward += 1


def _round(pp: int, micro_batches: int) -> int:
    """Micro-batches of a stage that follow each other in an interleaved schedule."""
    return micro_batches // max(1, micro_batches // pp)


def _stage(step: int, stages: int, pp: int, micro_batches: int) -> int:
    return step // _round(pp, micro_batches) % stages


def _scaled(memory: Mapping[str, int], profile: Profile, micro_batches: int) -> dict[str, int]:
    more = profile.kept * (micro_batches - profile.micro_batches)
    return {**memory, "activations": memory["activations"] + more}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: size + other[name] for name, size in one.items()}
