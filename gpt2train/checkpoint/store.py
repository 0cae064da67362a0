"""Tensors of a checkpoint, in torch's distributed format, and reading them.

Tensors have flat names that do not depend on the parallel layout (`model.wte.weight`, `optim.wte.weight.exp_avg`), so
that another layout can load them. torch's own loader does not detect a flipped bit; here hashes are compared first.
"""

import functools
import os
import pickle
import warnings
from collections.abc import Mapping
from enum import EnumType
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from gpt2train.checkpoint.manifest import stored_labels, stored_shape, verify
from gpt2train.compat.torch import CHECKPOINT_METADATA_NAMES
from gpt2train.errors import RunError
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.parallel.mesh import all_or_raise
from gpt2train.store.inner_path import inner_path

# Classes in the `.metadata` of tensors. BytesStorageMetadata is excluded, since its payload would be unpickled.
ALLOWED = CHECKPOINT_METADATA_NAMES | {
    ("torch", "Size"),
    ("torch", "device"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
    ("pathlib._local", "WindowsPath"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
}
GETATTR = ("builtins", "getattr")


class SafeReader(dcp.FileSystemReader):
    """torch's reader of a checkpoint folder, but `RunError` if the pickle `.metadata` names code that is not `ALLOWED`.

    The metadata is read once and cached: loading tensor by tensor requests it each time, and it has an entry for every
    shard.
    """

    _read: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the metadata, once.

        Raises:
            UserError: it names a file outside of its folder.
            RunError: it names a class that is not allowed, or the checkpoint was removed.
        """
        if self._read is None:
            path = Path(self.path) / ".metadata"
            try:
                with path.open("rb") as file:
                    found: Metadata = _Unpickler(file).load()
            except FileNotFoundError as error:
                raise _load_error(self.path, error) from error
            for stored in (found.storage_data or {}).values():
                inner_path(stored.relative_path, path)
            self._read = found
        self._read.storage_meta = self._read.storage_meta or StorageMeta()
        self._read.storage_meta.load_id = self.load_id
        return self._read


def member_of(kind: Any, name: object) -> Any:
    """Return a member of an enumeration; Python 3.11.0 to 3.11.3 pickle it as `getattr(kind, name)`.

    Raises:
        RunError: it asks for anything else.
    """
    if isinstance(kind, EnumType) and isinstance(name, str) and name in kind.__members__:
        return kind.__members__[name]
    raise RunError(f"the checkpoint's .metadata names {kind!r:.200}.{name!s:.200}, which is not allowed; do not use it")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == GETATTR:
            return member_of
        if (module, name) in ALLOWED or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise RunError(f"the checkpoint's .metadata names {module}.{name}, which is not allowed; do not use it")


def load(checkpoint: str | Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Read a checkpoint into the tensors of `state`, in place, on any layout. Collective.

    Raises:
        RunError: the checkpoint lacks some of these tensors, or has them in another size.
    """
    reader = SafeReader(checkpoint)

    def check() -> None:
        stored = reader.read_metadata().state_dict_metadata
        sizes = {name: tuple(getattr(stored.get(name), "size", ())) for name in state if name in stored}
        other = [name for name, tensor in state.items() if sizes.get(name) != tuple(tensor.shape)]
        if other:
            found = f"has {other[0]} with the size {sizes[other[0]]}" if other[0] in sizes else f"has no {other[0]}"
            more = f", and {len(other) - 1} more" if len(other) > 1 else ""
            raise RunError(f"cannot load {checkpoint}: it {found}{more}; it is of another model or optimizer")

    all_or_raise(check, group)
    try:
        dcp.load(dict(state), storage_reader=reader, process_group=group)
    except CheckpointException as error:
        raise _load_error(checkpoint, next(iter(error.failures.values()))[0]) from error


def _load_error(checkpoint: str | os.PathLike[str], reason: BaseException) -> RunError:
    if isinstance(reason, FileNotFoundError):  # its files were there a moment ago, when they were hashed
        remedy = "a training keeps its newest alone (checkpoints.keep); run again"
        return RunError(f"{checkpoint} was removed while it was read: {remedy}")
    return RunError(f"cannot load {checkpoint}: {reason}")


def open_weights(checkpoint: str | Path) -> LazyWeights:
    """Open the model of a checkpoint of any layout, to be read tensor by tensor, without a process group.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: the checkpoint is damaged, or its manifest lacks the sizes of the model.
    """
    manifest = verify(checkpoint)
    return LazyWeights(stored_shape(manifest, checkpoint), open_tensors(checkpoint), stored_labels(manifest))


def open_tensors(checkpoint: str | Path, prefix: str = "model.") -> dict[str, LazyTensor]:
    """Open the tensors whose names begin with a prefix, unsharded, without verifying the checkpoint.

    The prefix, `model.` of parameters or `optim.` of the optimizer state, is removed from the names.
    """
    reader = SafeReader(checkpoint)
    return {
        key.removeprefix(prefix): LazyTensor(tuple(entry.size), functools.partial(_read, reader, key, entry.size))
        for key, entry in sorted(reader.read_metadata().state_dict_metadata.items())
        if key.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }


def _read(reader: SafeReader, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Read one tensor. Peak memory is the tensor and, in the stored dtype, its largest shard."""
    state = {key: torch.empty(size, dtype=dtype)}
    with warnings.catch_warnings():  # torch warns about the missing process group even with no_dist
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(state, storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # a BaseException
            raise _load_error(reader.path, next(iter(error.failures.values()))[0]) from error
    return state[key]
