"""Execution of operators for the shapes of their results alone.

Tensors stay plain CPU tensors, so that autograd, autocast, DTensor and FSDP work as ever, but nothing is computed:
each operator is run once per kind of arguments on the meta device, and from then on its results are new memory of
the same sizes. The memory is never touched, so that the system never provides it: a step of 175 billion parameters
takes a few hundred megabytes.

torch's `FakeTensorMode` does the same with tensors of a class of its own, at 0.2 ms for each operator; this takes a
tenth, and a step of a large model has 10^5 of them.

Computed for real are operators on integers of moderate size, such as positions and the ranks of a mesh, and those that
return no tensor.
"""

import mmap
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gpt2train.compat.torch_simulation import (
    HIDDEN_VIEWS,
    DispatchMode,
    answer_vote,
    copy_in,
    in_shape_propagation,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)

MAX_COMPUTED = 1 << 22  # elements of integer tensors up to which an operator on them is computed
# Larger tensors are mapped without a reservation of memory: Linux refuses a single one above that of the machine.
MAX_RESERVED = 1 << 28
MAP_NORESERVE = 0x4000  # of Linux; in Python's module from 3.13 on
aten = torch.ops.aten
PLAIN = {Tensor, torch.nn.Parameter}
EMPTY = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}
REAL = {
    aten._local_scalar_dense.default,
    aten.set_.source_Storage_storage_offset,
    aten.resize_.default,
    *HIDDEN_VIEWS,
}


class ShapeMode(DispatchMode):
    """Context in which operators return results of the right shapes, with undefined values.

    Args:
        created: called with each tensor that has new memory.
        executed: called with operator, arguments, keyword arguments, result and key of each operator that computes.
        communicated: called with operator and arguments of each collective and transfer.
    """

    def __init__(
        self,
        created: Callable[[Tensor], None],
        executed: Callable[[Any, Any, Any, Any, Any], None],
        communicated: Callable[[Any, Any], None],
    ) -> None:
        super().__init__()
        self._created, self._executed, self._communicated = created, executed, communicated
        self._kinds: dict[Any, str] = {}
        self._results: dict[Any, tuple[bool, list[Any], Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if in_shape_propagation(types):
            return func(*args, **(kwargs or {}))
        if not PLAIN.issuperset(types):  # a subclass, such as DTensor, comes back with plain tensors
            return NotImplemented
        kwargs = kwargs or {}
        kind = self._kinds.get(func) or self._kinds.setdefault(func, _kind(func))
        if kind == "real":
            return func(*args, **kwargs)
        if kind == "collective":
            self._communicated(func, args)
            return self._collective(func, args, kwargs)
        if kind == "gather":
            return copy_in(args)
        if kind == "new":
            result = func(*args, **kwargs)
            if result.device.type != "meta":
                self._created(result)
            return result
        key, on_meta = _key(func, args, kwargs)
        if on_meta:
            return func(*args, **kwargs)
        if key not in self._results:
            self._results[key] = self._shapes(func, args, kwargs)
        computed, leaves, tree = self._results[key]
        if computed:
            result = func(*args, **kwargs)
            for leaf in _tensors((result,)):
                self._created(leaf)
            return result
        if kind == "in place":
            result = _written(func, args, kwargs)
        else:
            result = tree_unflatten([self._new(*leaf) if isinstance(leaf, tuple) else leaf for leaf in leaves], tree)
        self._executed(func, args, kwargs, result, key)
        return result

    def _new(self, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        length = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
        if length * dtype.itemsize > MAX_RESERVED:
            memory = mmap.mmap(-1, length * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
            result = torch.frombuffer(memory, dtype=dtype).as_strided(size, stride)
        else:
            result = torch.empty_strided(size, stride, dtype=dtype)
        self._created(result)
        return result

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a collective whose tensors are not touched."""
        result = func(*tree_map_only(Tensor, _meta, args), **kwargs)
        answer_vote(func, args)
        if isinstance(result, tuple):  # the written tensors, and the handle to wait for
            return args[0], result[1]
        return self._new(result.shape, result.stride(), result.dtype) if isinstance(result, Tensor) else result

    def _shapes(self, func: Any, args: Any, kwargs: Any) -> tuple[bool, list[Any], Any]:
        """Return whether an operator is computed, and its results: (size, stride, dtype), or what is no tensor."""
        given = list(_tensors((args, kwargs)))
        keywords = tree_map_only(Tensor, _meta, kwargs)
        if any(argument.name == "device" for argument in func._schema.arguments):
            keywords = keywords | {"device": torch.device("meta")}
        try:
            leaves, tree = tree_flatten(func(*tree_map_only(Tensor, _meta, args), **keywords))
        except NotImplementedError:  # the shape depends on the values, as that of nonzero
            if _are_computed(given):
                return True, [], None
            if self._kinds[func] == "in place":  # the fused AdamW has no meta kernel
                return False, [], None
            raise
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        computed = _are_computed([*given, *tensors]) and bool(leaves)
        return computed, [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in leaves], tree


def _are_computed(tensors: list[Tensor]) -> bool:
    """Return True for integers of moderate size, for single numbers, and for no tensors at all."""
    exact = all(x.numel() == 1 or not (x.is_floating_point() or x.is_complex()) for x in tensors)
    return exact and sum(x.numel() for x in tensors) <= MAX_COMPUTED


def _kind(func: Any) -> str:
    if func.namespace in ("c10d", "_c10d_functional") and func not in HIDDEN_VIEWS:
        return "collective"
    if func.namespace == "fsdp" and func.name().startswith("fsdp::all_gather_copy_in"):
        return "gather"
    if func in EMPTY:
        return "new"
    if func.is_view or func in REAL:
        return "real"
    returns = func._schema.returns
    if not returns or all(value.alias_info is not None and value.alias_info.is_write for value in returns):
        return "in place"
    return "results"


def _key(func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """Return a key of operator and arguments that determines the shapes of its results, and True on the meta device."""
    parts: list[Any] = [func]
    on_meta = False

    def add(values: Iterable[Any]) -> None:
        nonlocal on_meta
        for value in values:
            if isinstance(value, Tensor):
                parts.append((value.shape, value.stride(), value.dtype))
                on_meta = on_meta or value.is_meta
            elif isinstance(value, (list, tuple)):
                parts.append(len(value))
                add(value)
            else:
                parts.append((type(value), value))

    add(args)
    if kwargs:
        add(kwargs)
        add(kwargs.values())
        device = kwargs.get("device")
        on_meta = on_meta or (device is not None and torch.device(device).type == "meta")
    return tuple(parts), on_meta


def _tensors(values: Any) -> Iterable[Tensor]:
    for value in tree_flatten(values)[0]:
        if isinstance(value, Tensor):
            yield value


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments that an operator in place writes to and returns."""
    if not func._schema.returns:
        return None
    found = [
        args[position] if position < len(args) else kwargs[argument.name]
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return found[0] if len(func._schema.returns) == 1 else tuple(found)
