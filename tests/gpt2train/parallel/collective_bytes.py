"""Volume of the collectives and transfers of this process, by operation and dtype."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
