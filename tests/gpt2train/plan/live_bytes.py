"""Current and peak bytes of this process's tensors, to compare with the plan's estimate."""

import weakref
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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
