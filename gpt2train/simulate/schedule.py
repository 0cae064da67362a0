"""Memory of a pipeline's schedule, put together from the forward and backward passes of a short one.

What a pass keeps or frees depends on little: the first and the last micro-batch of a stage differ from the others,
since they allocate and reduce the gradients, and a pass after a backward pass finds parameters gathered. So a run of
few micro-batches gives what every kind of pass keeps, and the most that it needs meanwhile; the order of the passes of
a schedule, of any number of micro-batches and at any place of the pipeline, gives the rest. Most passes of many
micro-batches repeat a period of the schedule, which is counted and not walked through. Held against whole simulations
by tests/gpt2train/simulate/test_kinds.py, and against walks through all passes by test_schedule.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Place = Literal["first", "middle", "last"]
Pass = tuple[bool, int]  # True for a forward pass; number of the stage among those of the rank
# A pass, place of its micro-batch, whether the pass before it through the same stage was forward, pass before it.
# ZeRO 3 leaves the blocks of a stage gathered after a backward pass.
Kind = tuple[Pass, Place, bool, Pass]
Repeated = tuple[list[Kind], int]  # passes that follow each other, and how many times they do
SHORT = 3  # micro-batches that have a first, a middle and a last one


@dataclass(frozen=True)
class PassMemory:
    """Change of the memory by one pass, in bytes of each category."""

    peak: Mapping[str, int]  # change from the start of the pass to the moment with most memory
    net: Mapping[str, int]  # change from its start to its end


@dataclass(frozen=True)
class Profile:
    """Memory of a rank in a step with few micro-batches, in bytes of each category."""

    micro_batches: int  # number of micro-batches
    start: Mapping[str, int]  # memory before the first pass
    kept: int
    """Bytes that each micro-batch keeps from the start to the end: its batch, and buffers for what is received."""
    passes: Mapping[Kind, PassMemory]  # changes by each kind of pass
    end: Mapping[str, int]  # the most memory after the last pass


def peak(profile: Profile, order: Iterable[Repeated], micro_batches: int) -> dict[str, int]:
    """Return the bytes of each category when a rank's schedule needs most."""
    level, best = _scaled(profile.start, profile, micro_batches), _scaled(profile.end, profile, micro_batches)
    for period, times in order:
        before = level
        level, best = _walk(profile, period, level, best)
        if times > 1:  # each repetition changes the memory by as much, so that the first or the last one needs most
            last = {name: size + (times - 2) * (size - before[name]) for name, size in level.items()}
            level, best = _walk(profile, period, last, best)
    return best


def _walk(
    profile: Profile, period: Sequence[Kind], level: dict[str, int], best: dict[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Memory after some passes, and the most until then."""
    for kind in period:
        change = known(profile.passes, kind)
        if sum(level.values()) + sum(change.peak.values()) > sum(best.values()):
            best = _sum(level, change.peak)
        level = _sum(level, change.net)
    return level, best


def repeated_passes(schedule: str, pp: int, stages: int, micro_batches: int, rank: int) -> list[Repeated]:
    """Order of the passes of a schedule on one rank, with the repetitions of a period counted.

    A schedule of few micro-batches has all kinds of passes, and a period among them for each further round of
    micro-batches: a forward pass and a backward pass of each stage in 1F1B, in GPipe one of them in each half.

    The arguments are those of `passes`.
    """
    unit = pp if schedule == "interleaved" else 1
    # The warm-up takes less than two rounds of an interleaved schedule, pp of 1F1B; four more have a middle one.
    few = SHORT + 1 if schedule == "gpipe" else 6 * pp if schedule == "interleaved" else pp + 4
    rounds = (micro_batches - few) // unit
    if rounds <= 0 or micro_batches % unit:
        return [(list(kinds(passes(schedule, pp, stages, micro_batches, rank), micro_batches)), 1)]
    short = micro_batches - rounds * unit
    made = list(kinds(passes(schedule, pp, stages, short, rank), short))
    if schedule == "gpipe":
        periods = [slice(1, 2), slice(short + 1, short + 2)]
    else:
        length = 2 * unit * stages
        start = _warm_up(schedule, pp, stages, short, rank) + length
        periods = [slice(start, start + length)]
    found, end = list[Repeated](), 0
    for period in periods:
        found += [(made[end : period.start], 1), (made[period], rounds + 1)]
        end = period.stop
    return [*found, (made[end:], 1)]


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
    alike.sort(key=lambda other: (other[2] != forward, other[3][0] != before[0], other[3][1] != before[1]))
    return found[alike[0]]


def passes(schedule: str, pp: int, stages: int, micro_batches: int, rank: int) -> Iterator[Pass]:
    """Order of the passes of a schedule of `torch.distributed.pipelining` on one rank.

    Args:
        schedule: "1f1b", "gpipe" or "interleaved".
        pp: ranks of the pipeline.
        stages: stages of each rank.
        micro_batches: number of micro-batches.
        rank: pipeline rank.
    """
    total, warm = micro_batches * stages, _warm_up(schedule, pp, stages, micro_batches, rank)
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


def _warm_up(schedule: str, pp: int, stages: int, micro_batches: int, rank: int) -> int:
    """Forward passes before the first backward pass, or in an interleaved schedule before passes alternate."""
    total = micro_batches * stages
    if schedule == "gpipe":
        return total
    if schedule == "1f1b":
        return min(total, pp - rank)
    return min(total, (stages - 1) * _round(pp, micro_batches) + 2 * (pp - 1 - rank))


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
