"""Private parts of torch in computation, checkpoints and profiles.

Each is held against the plain way by tests/gpt2train/compat/test_torch.py. The range of torch (`TORCH`) is widened when
`.ci/other-torch newest` has passed on the new release.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import filesystem
from torch.distributed.distributed_c10d import ProcessGroup, Work

TORCH = ">=2.11,<2.16"  # as in pyproject.toml

_aten = torch.ops.aten
# Operators that `scaled_dot_product_attention` dispatches to. The public operator is not seen by a policy of selective
# activation checkpointing.
# Breaks when a backend is added or renamed: a missing name is an error at import; the results of a new one would be
# recomputed, which costs time and changes no number.
ATTENTION_OPERATORS = frozenset(
    {
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)

# Gather equal tensors of all ranks into one; sum those, each rank a part. The older names warn from torch 2.13 on.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

# Private names in the pickled `.metadata` of a torch.distributed.checkpoint.
# Breaks when torch pickles another class: the restricted reader refuses the checkpoint and names the class.
CHECKPOINT_METADATA_NAMES = frozenset(
    {
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    }
)


def storage_info(file: str, offset: int, length: int) -> object:
    """Return the place of a chunk in a file of a torch.distributed.checkpoint, as `.metadata` has it.

    Breaks when the class is renamed or gets another field, with an error at once.
    """
    return filesystem._StorageInfo(file, offset, length)


def checkpoint_writer(folder: Path) -> filesystem.FileSystemWriter:
    """Create torch's writer of checkpoints, with streams that do nothing when they are freed after a failed save.

    Python 3.13 prints the error of each, `flush of closed file`. Breaks when torch renames its transforms: an
    `AttributeError` here.
    """
    writer = filesystem.FileSystemWriter(folder, sync_files=True)
    transform = writer.transforms.transform_save_stream

    def open_stream(item: Any, raw: Any) -> Any:
        stream, names = transform(item, raw)
        stream.close = lambda: None if raw.closed else raw.flush()  # type: ignore[method-assign]
        return stream, names

    writer.transforms.transform_save_stream = open_stream  # type: ignore[assignment]
    return writer


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of each tensor in one call, [tensors].

    A call for each tensor takes longer: a small model has hundreds. Breaks when `_foreach_norm` is renamed;
    `torch.linalg.vector_norm` in a loop replaces it.
    """
    return torch.stack(torch._foreach_norm(list(tensors)))


def copy_tensors(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others, of another dtype too, in one call.

    Breaks when `_foreach_copy_` is renamed; `copy_` in a loop replaces it.
    """
    torch._foreach_copy_(list(targets), list(sources))


def layer_norm_backward(grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight for y = (x - mean) * scale * weight, by the kernel of LayerNorm.

    Breaks when the operator's arguments change, with an error at the first call; autograd of plain operations replaces
    it.

    Args:
        grad: gradient of y, [..., width].
        x: input, [..., width].
        mean: mean of each row of x, [..., 1].
        scale: 1 / sqrt(variance + eps) of each row, [..., 1].
        weight: [width].
    """
    grad_x, grad_weight, _ = _aten.native_layer_norm_backward(
        grad, x, weight.shape, mean, scale, weight, None, [True, True, False]
    )
    return grad_x, grad_weight


def can_pack_linear(weight: Tensor) -> bool:
    """Return True if torch has oneDNN's packed product for weights of this dtype and device."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack_linear(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """Return x -> x @ weight.T + bias with a copy of the weight in oneDNN's own memory layout.

    Breaks when the operators' arguments change, with an error at the first call. When they are removed,
    `can_pack_linear` is False and callers take `torch.nn.functional.linear`.

    Args:
        weight: weight for which `can_pack_linear` is True, [outer, inner].
        bias: bias of the linear layer, if it has one.
        rows: number of rows of x that the layout is chosen for; others are possible.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(x: Tensor) -> Tensor:
        result: Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return product


@contextlib.contextmanager
def around_waits(context: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Wait for collectives and transfers inside of a context, those of torch's own parallelism too.

    With gloo, every wait of the host is a call of `Work.wait`. Breaks when torch waits in another way: such waits are
    outside of the context, and no number changes.
    """
    wait = Work.wait

    def inside(self: Work, *arguments: Any, **keywords: Any) -> Any:
        waits_since = time.monotonic()  # noqa: F841  # read from this frame by gpt2train.launch.hang_report
        with context():
            return wait(self, *arguments, **keywords)

    Work.wait = inside  # type: ignore[method-assign]
    try:
        yield
    finally:
        Work.wait = wait  # type: ignore[method-assign]


def work_kind(work: Work) -> str:
    """Return the kind of a collective that was started, such as `allgather`.

    Breaks when `_get_op_type` is renamed: then a report of a hang calls it a collective.
    """
    kind = getattr(work, "_get_op_type", lambda: "a collective")()
    return str(kind).rpartition(".")[2].lower()


def sequence_number(group: ProcessGroup) -> int | None:
    """Return the number of collectives that were started in a group; None if its backend does not count them.

    Breaks when the function is renamed: then a report of a hang has no number.
    """
    count = getattr(group, "_get_sequence_number_for_group", None)
    return None if count is None else int(count())


def record_memory() -> None:
    """Start to record the allocations of all GPUs with their stacks.

    Breaks when torch makes the function public under another name; torch's documentation of memory snapshots names it.
    """
    torch.cuda.memory._record_memory_history()


def dump_memory(file: Path) -> None:
    """Write the recorded allocations for https://docs.pytorch.org/memory_viz, and stop the recording.

    Breaks as `record_memory`.
    """
    torch.cuda.memory._dump_snapshot(str(file))
    torch.cuda.memory._record_memory_history(enabled=None)
