"""Record of a simulated step: when each piece of memory is allocated and freed, collectives and FLOPs."""

import bisect
import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

from gpt2train.compat.torch_simulation import group_of, tree_leaves
from gpt2train.simulate.schedule import Kind, PassMemory, Profile, kinds
from gpt2train.training.phases import PhaseTimer

# Operators of torch's process groups, by the name under which they are reported. What is received is sent by another
# process, which reports it.
COLLECTIVES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
    "c10d::broadcast_": "broadcast",
    "c10d::send": "send",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
}
CATEGORIES = ("parameters", "gathered", "gradients", "optimizer", "activations", "temporary")


@dataclass(frozen=True)
class Collective:
    """Kind of collectives or transfers."""

    operation: str  # all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or send
    dtype: str  # dtype of what is sent, such as "bfloat16"
    group: str  # name of the process group
    ranks: int  # number of ranks of the group


@dataclass(frozen=True)
class Counts:
    """Collectives and FLOPs."""

    calls: Counter[Collective]  # number of collectives by kind
    bytes: Counter[Collective]
    """Their bytes: the whole tensor, which is the input of a reduction and the output of an all-gather; of an
    all-to-all what this rank receives."""
    flops: int  # FLOPs of matrix products and attention

    def plus(self, other: "Counts", times: int) -> "Counts":
        """Add another one a number of times."""
        calls, sizes = Counter(self.calls), Counter(self.bytes)
        for kind in other.calls:
            calls[kind] += times * other.calls[kind]
            sizes[kind] += times * other.bytes[kind]
        return Counts(+calls, +sizes, self.flops + times * other.flops)


@dataclass(frozen=True)
class PassCounts:
    """Collectives and FLOPs of a pipeline's step."""

    outside: Counts  # those before the first and after the last pass
    sent: Counts  # what is sent to the next and the previous stage for each micro-batch
    passes: Mapping[Kind, Counts]  # those of each kind of pass


@dataclass
class _Storage:
    """Memory of one storage."""

    born: int  # number of the event of its allocation
    size: int  # present bytes
    category: str | None = None  # what it holds, if that is known from the start
    freed: int | None = None  # number of the event at which it was freed; None while it lives


@dataclass
class Recorder:
    """Record of the memory, the collectives and the FLOPs of a step."""

    calls: Counter[Collective] = field(default_factory=Counter)
    bytes: Counter[Collective] = field(default_factory=Counter)
    flops: int = 0

    def __post_init__(self) -> None:
        self._storages: list[_Storage] = []
        self._living: dict[int, tuple[weakref.ref[Any], _Storage]] = {}
        self._events: list[tuple[_Storage, int]] = []  # change of bytes
        self._forwards: list[tuple[int, int]] = []
        self._counts: list[Counts] = []  # before each forward pass
        self._flops_of: dict[Any, int] = {}
        self.groups: dict[str, tuple[str, int]] = {}  # names and sizes of process groups, by torch's own names of them
        self._update = 0  # number of the event at which the update begins
        # Of each pass of a pipeline: whether it is forward, stage, numbers of the events and counts at its ends.
        self._passes: list[tuple[bool, int, int, int, Counts]] = []

    def created(self, tensor: Tensor, category: str | None = None) -> None:
        """Record the memory of a tensor, once; a `category` overrides that of an earlier call."""
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.is_meta:
            return
        storage = local.untyped_storage()
        key = id(storage)
        if key not in self._living:
            found = _Storage(len(self._events), storage.nbytes(), category)
            self._storages.append(found)
            self._events.append((found, found.size))
            self._living[key] = weakref.ref(storage, lambda _: self._freed(key)), found
        elif category is not None:
            self._living[key][1].category = category

    def resized(self, tensor: Tensor) -> None:
        """Record a change of the memory of a buffer for gathered parameters."""
        self.created(tensor, "gathered")
        storage = tensor.untyped_storage()
        found = self._living[id(storage)][1]
        if (change := storage.nbytes() - found.size) != 0:
            self._events.append((found, change))
            found.size += change

    def executed(self, func: Any, args: Any, kwargs: Any, result: Any, key: Any) -> None:
        """Count the FLOPs of an operator; `key` determines its shapes."""
        if key not in self._flops_of:
            count = flop_registry.get(func.overloadpacket)
            self._flops_of[key] = 0 if count is None else count(*args, **kwargs, out_val=result)
        self.flops += self._flops_of[key]

    def communicated(self, func: Any, args: Any) -> None:
        """Count a collective by its whole tensor: the input of a reduction, the output of an all-gather."""
        name = func.name().partition(".")[0]
        if name not in COLLECTIVES:
            return
        tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        largest = args[0] if name == "c10d::alltoall_base_" else max(tensors, key=Tensor.numel)
        if name == "c10d::send" and not largest.is_floating_point():
            return  # the vote of torch's pipeline stages, in the first step of a run alone
        size = largest.numel() * largest.element_size()
        if name.startswith("_c10d_functional"):
            group, ranks = self.groups[str(args[-1])]
            size *= int(args[1]) if "all_gather" in name else 1  # it has its input alone
        else:
            process_group = group_of(args)
            default = process_group.group_desc, process_group.size()
            group, ranks = self.groups.get(process_group.group_name, default)
        kind = Collective(COLLECTIVES[name], str(largest.dtype).removeprefix("torch."), group, ranks)
        self.calls[kind] += 1
        self.bytes[kind] += size

    def built(self) -> None:
        """Record the end of the construction of the engine: what lives and is no parameter belongs to the optimizer."""
        for _, found in self._living.values():
            found.category = found.category or "optimizer"

    def restart(self) -> None:
        """Forget the counts and the past of the memory; what lives is kept, as allocated before the step."""
        self._storages = [found for _, found in self._living.values()]
        for found in self._storages:
            found.born = -1
        self._events = [(found, found.size) for found in self._storages]
        self._forwards, self._counts, self._passes = [], [], []
        self.calls.clear()
        self.bytes.clear()
        self.flops = 0

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Context of a forward pass."""
        start = len(self._events)
        self._counts.append(self.counts())
        yield
        self._forwards.append((start, len(self._events)))

    @contextlib.contextmanager
    def stage_pass(self, forward: bool, stage: int) -> Iterator[None]:
        """Context of the pass of a micro-batch through one of the rank's pipeline stages."""
        start, before = len(self._events), self.counts()
        yield
        self._passes.append((forward, stage, start, len(self._events), self.counts().plus(before, -1)))

    def profile(self, micro_batches: int) -> Profile:
        """Memory of each kind of pass of a pipeline's step.

        What happens between two passes belongs to the following one, but after the last backward pass of a stage, where
        its gradients are reduced.
        """
        moments, passes = self._moments(), {}
        made = list(self._kinds(micro_batches))
        start = first = made[0][1][2]
        for number, (kind, (forward, _, _, end, _)) in enumerate(made):
            if kind[1] == "last" and not forward and number + 1 < len(made):
                end = made[number + 1][1][2]
            top = max(range(start, end + 1), key=lambda moment: moments[moment][0])
            peak, net = (
                {name: moments[moment][1][name] - moments[start][1][name] for name in CATEGORIES}
                for moment in (top, end)
            )
            passes[kind] = PassMemory(peak, net)
            start = end
        _, last = max(moments[start:], key=lambda moment: moment[0])
        kept = [one.size for one in self._storages if one.category is None and one.freed is None and one.born < first]
        return Profile(micro_batches, moments[first][1], sum(kept) // micro_batches, passes, last)

    def pass_counts(self, micro_batches: int) -> PassCounts:
        """Collectives and FLOPs of a pipeline's step, by kind of pass."""
        sends = [kind for kind in self.calls if kind.operation == "send"]  # of all micro-batches alike
        calls = Counter({kind: self.calls[kind] // micro_batches for kind in sends})
        sent = Counts(calls, Counter({kind: self.bytes[kind] // micro_batches for kind in sends}), 0)
        outside = self.counts().plus(sent, -micro_batches)
        for *_, counts in self._passes:
            outside = outside.plus(counts, -1)
        return PassCounts(outside, sent, {kind: counts for kind, (*_, counts) in self._kinds(micro_batches)})

    def _kinds(self, micro_batches: int) -> Iterator[tuple[Kind, tuple[bool, int, int, int, Counts]]]:
        return zip(kinds([one[:2] for one in self._passes], micro_batches), self._passes, strict=True)

    def counts(self) -> "Counts":
        """Collectives and FLOPs since the step began."""
        return Counts(Counter(self.calls), Counter(self.bytes), self.flops)

    def between(self, first: int, second: int) -> "Counts":
        """Collectives and FLOPs between the beginnings of two forward passes."""
        return self._counts[second].plus(self._counts[first], -1)

    def peak(self) -> dict[str, int]:
        """Bytes of each category when the most memory was in use.

        What a forward pass leaves is an activation. Of what a backward pass allocates, gradients are what lives when
        the next pass begins, or the update; the rest is temporary.
        """
        return max(self._moments(), key=lambda moment: moment[0])[1]

    def _moments(self) -> list[tuple[int, dict[str, int]]]:
        """Bytes in use, altogether and by category, before the first event and after each one."""
        starts, ends = [start for start, _ in self._forwards], [end for _, end in self._forwards]
        categories = {id(found): found.category or self._category(found, starts, ends) for found in self._storages}
        sizes, total = dict.fromkeys(CATEGORIES, 0), 0
        moments = [(0, dict(sizes))]
        for found, change in self._events:
            sizes[categories[id(found)]] += change
            total += change
            moments.append((total, dict(sizes)))
        return moments

    def _category(self, found: _Storage, starts: list[int], ends: list[int]) -> str:
        freed = len(self._events) if found.freed is None else found.freed
        number = bisect.bisect_right(starts, found.born) - 1
        if number < 0:  # batches, and buffers of a pipeline for what is received
            return "activations"
        if found.born < ends[number]:
            return "activations" if freed >= ends[number] else "temporary"
        passes = [start for _, _, start, _, _ in self._passes] or starts
        index = bisect.bisect_right(passes, found.born)
        following = passes[index] if index < len(passes) else self._update
        return "gradients" if found.born < following <= freed else "temporary"

    def begin_update(self) -> None:
        """Record the end of the last backward pass."""
        self._update = len(self._events)

    def _freed(self, key: int) -> None:
        found = self._living.pop(key)[1]
        found.freed = len(self._events)
        self._events.append((found, -found.size))


class Forwards(PhaseTimer):
    """Timer for the engine of a simulated step, which records the ends of its forward passes alone."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Record the block if it is a forward pass."""
        with self._recorder.forward() if phase == "forward" else contextlib.nullcontext():
            yield
