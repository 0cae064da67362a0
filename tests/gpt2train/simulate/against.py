"""Simulated ranks beside the ranks of a real job on the same settings."""

import json
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpt2train.config import RunConfig
from gpt2train.settings import build
from gpt2train.simulate.rank import RankStep, simulate_rank
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import write

SECONDS = 900.0  # for a job with many layouts, on a busy machine
PROGRAM = Path(__file__).parent / "measure_step.py"


def run(output: Path, changes: dict[str, Any], data: int) -> RunConfig:
    """A model whose parameters, activations and logits all count."""
    base = {
        "model": {"layers": 4, "heads": 4, "hidden": 64, "context": 64, "dropout": 0.0},
        "batch": {"micro_batch": 2, "global_batch": 8 * data},
        "schedule": {"warmup": 1},
        "precision": "bf16",
        "device": "cpu",
        "vocab": 500,
        "output": str(output),
        "data": {"train": "none"},
    }
    return build(RunConfig, base, changes)


def sent(step: RankStep) -> dict[str, list[int]]:
    """Calls and bytes of the collectives, by operation and dtype, over all groups."""
    calls: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, size in step.counts.bytes.items():
        calls[f"{kind.operation} {kind.dtype}"] += step.counts.calls[kind]
        sizes[f"{kind.operation} {kind.dtype}"] += size
    return {name: [calls[name], sizes[name]] for name in sorted(sizes)}


def differences(folder: Path, layouts: dict[str, dict[str, Any]], processes: int) -> dict[str, list[Any]]:
    """For each layout and rank the simulated peak as a multiple of the real one, and the collectives that differ."""
    runs = {}
    for number, (name, changes) in enumerate(layouts.items()):
        parallel = changes.get("parallel", {})
        data = processes // parallel.get("tp", 1) // parallel.get("pp", 1)
        runs[name] = run(folder / f"{number}", changes, data)
    report = folder / "steps.json"
    run_ranks(PROGRAM, str(report), *map(write, runs.values()), processes=processes, seconds=SECONDS)
    real = json.loads(report.read_text())
    found: dict[str, list[Any]] = {}
    for number, (name, config) in enumerate(runs.items()):
        for rank in range(processes):
            step, measured = simulate_rank(config, processes, rank), real[rank][number]
            wrong = {
                kind: (sent(step).get(kind), measured["collectives"].get(kind))
                for kind in sent(step).keys() | measured["collectives"].keys()
                if sent(step).get(kind) != measured["collectives"].get(kind)
            }
            found.setdefault(name, []).append((step.peak / measured["peak"], wrong))
    return found


class LiveBytes(TorchDispatchMode):
    """Counter of the storages that any operator has touched and that still live.

    Storages are asked for their size each time, since FSDP frees its buffers by resizing them to nothing.

    Attributes:
        peak: the most bytes after any operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.device.type != "meta":
            storage = local.untyped_storage()
            self._storages[id(storage)] = weakref.ref(storage)

    def bytes(self) -> int:
        found = {key: storage for key, ref in self._storages.items() if (storage := ref()) is not None}
        self._storages = {key: self._storages[key] for key in found}
        return sum(storage.nbytes() for storage in found.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        self.peak = max(self.peak, self.bytes())
        return result


# Operators of torch's process groups, by the name that the counter reports.
OPERATIONS = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
    "c10d::broadcast_": "broadcast",
    "c10d::send": "send",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
}
OTHER = {"c10d::recv_", "c10d::barrier"}  # received bytes are sent by another process


class CollectiveBytes(TorchDispatchMode):
    """Counter of the bytes that this process's collectives and sends are called with.

    The volume of a collective is its whole tensor, which is the input of a reduction and the output of an all-gather,
    independent of the algorithm that transfers it. That of an all-to-all is its output.

    Attributes:
        bytes: volume by (operation, name of the dtype).
        calls: number of calls, by the same keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name in OPERATIONS:
            largest = max((x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), key=torch.numel)
            if OPERATIONS[name] == "all-to-all":
                largest = args[0]
            key = OPERATIONS[name], str(largest.dtype).removeprefix("torch.")
            # The functional all-gather has its input alone, and the number of processes as its second argument.
            times = args[1] if name == "_c10d_functional::all_gather_into_tensor" else 1
            self.bytes[key] += times * largest.numel() * largest.element_size()
            self.calls[key] += 1
        elif name.startswith("c10d::") and name not in OTHER:
            raise NotImplementedError(name)
        return func(*args, **(kwargs or {}))
