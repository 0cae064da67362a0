"""Files of a checkpoint (`gpt2train.io.run_folder` has their folder), and reading them.

    __0_0.distcp, … .metadata         torch.distributed.checkpoint: one file per process
    manifest.json                     size and SHA-256 of each file; step, sample index, settings, tokenizer, data

Tensors have flat names that do not depend on the parallel layout (`model.wte.weight`, `optim.wte.weight.exp_avg`), so
that another layout can load them. torch's own loader does not detect a flipped bit; here hashes are compared first.
"""

import functools
import hashlib
import pickle
import warnings
from collections.abc import Mapping
from operator import not_
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pydantic import Field, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from gpt2train.compat.torch import CHECKPOINT_METADATA_NAMES
from gpt2train.config import ModelSettings
from gpt2train.errors import RunError, UserError
from gpt2train.io.inner_path import InnerPath, inner_path
from gpt2train.io.run_folder import MANIFEST
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.model.objectives import label_names
from gpt2train.model.shape import Shape
from gpt2train.parallel.mesh import all_or_raise
from gpt2train.settings import Record
from gpt2train.training.train_state import TrainState

FORMAT = 1
# Classes in the `.metadata` of tensors. BytesStorageMetadata is excluded, since its payload would be unpickled.
ALLOWED = CHECKPOINT_METADATA_NAMES | {
    ("torch", "Size"),
    ("torch", "device"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
}


class StoredFile(Record):
    """File of a checkpoint."""

    bytes: int  # size in bytes
    sha256: str  # SHA-256 of the content, lower-case hex


class StoredCorpus(Record):
    """Training corpus of a run, as stored in checkpoints."""

    identity: str  # hash of its document lengths and of a sample of its tokens, independent of its path
    tokens: int  # number of tokens; 0 if they are no token files
    share: float  # share of the samples, 0 to 1


class CheckpointManifest(Record):
    """Content of `manifest.json`, whose presence makes a folder a checkpoint."""

    format: int  # version of the layout on disk
    position: TrainState  # train state of the run
    config: dict[str, Any]  # complete settings of the run
    tokenizer_hash: str | None  # hash of the tokenizer that the weights belong to
    data: tuple[StoredCorpus, ...] = ()  # training corpora, whose samples `position.samples` counts
    validation: str | None = None  # identity of the validation set; losses of different sets are not compared
    valid_loss: float | None = Field(None, allow_inf_nan=True)
    """Validation loss of these weights, if they were validated."""
    valid_metrics: dict[str, float] = Field({}, exclude_if=not_)
    """Further measures of that validation, by the names of the objective."""
    torch: str  # version of torch that wrote the checkpoint
    files: dict[InnerPath, StoredFile]  # all other files of the folder, by name


def read_manifest(checkpoint: str | Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint.

    Raises:
        UserError: there is no checkpoint at this path, or it names a file outside of its folder.
        RunError: its manifest is damaged or has another format version.
    """
    path = Path(checkpoint) / MANIFEST
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes(), context={"place": path})
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint} is not a checkpoint: it has no {MANIFEST}") from error
    except ValidationError as error:
        raise RunError(f"{path} is damaged or has another format version; use another checkpoint") from error
    if manifest.format != FORMAT:
        raise RunError(f"{checkpoint} has format {manifest.format}, but this version reads {FORMAT}")
    return manifest


def verify(checkpoint: str | Path, part: int = 0, of: int = 1) -> CheckpointManifest:
    """Compare the files of a checkpoint with its manifest, sizes first, then hashes: every `of`-th file from `part` on.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: a file is missing, truncated or altered; the message names it.
    """
    manifest = read_manifest(checkpoint)
    for name, stored in sorted(manifest.files.items())[part::of]:
        path = Path(checkpoint) / name
        size = path.stat().st_size if path.is_file() else None
        if size != stored.bytes:
            what = "is missing" if size is None else f"has {size:,} bytes instead of {stored.bytes:,}"
            raise RunError(f"the checkpoint is damaged: {path} {what}; use another checkpoint")
        if sha256(path) != stored.sha256:
            what = "has changed since it was written"
            raise RunError(f"the checkpoint is damaged: {path} {what}; use another checkpoint")
    return manifest


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
            RunError: it names a class that is not allowed.
        """
        if self._read is None:
            path = Path(self.path) / ".metadata"
            with path.open("rb") as file:
                found: Metadata = _Unpickler(file).load()
            for stored in (found.storage_data or {}).values():
                inner_path(stored.relative_path, path)
            self._read = found
        self._read.storage_meta = self._read.storage_meta or StorageMeta()
        self._read.storage_meta.load_id = self.load_id
        return self._read


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
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
        reason = next(iter(error.failures.values()))[0]
        raise RunError(f"cannot load {checkpoint}: {reason}") from error


def open_weights(checkpoint: str | Path) -> LazyWeights:
    """Open the model of a checkpoint of any layout, to be read tensor by tensor, without a process group.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: the checkpoint is damaged, or its manifest lacks the sizes of the model.
    """
    manifest = verify(checkpoint)
    return LazyWeights(stored_shape(manifest, checkpoint), open_tensors(checkpoint), stored_labels(manifest))


def stored_shape(manifest: CheckpointManifest, checkpoint: str | Path) -> Shape:
    """Sizes of a checkpoint's model, from its manifest.

    Raises:
        RunError: the manifest lacks them.
    """
    try:
        return ModelSettings.model_validate(manifest.config["model"]).shape(manifest.config["vocab"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{Path(checkpoint) / MANIFEST} lacks the sizes of the model ({error})") from error


def stored_labels(manifest: CheckpointManifest) -> tuple[str, ...]:
    """Names of the classes of a checkpoint's classifier; empty if it is none, or if they are not known."""
    try:
        return label_names(manifest.config["objective"]["options"]["labels"])
    except (KeyError, TypeError, ValueError):
        return ()


def open_tensors(checkpoint: str | Path, prefix: str = "model.") -> dict[str, LazyTensor]:
    """Open the tensors whose names begin with a prefix, unsharded, without verifying the checkpoint.

    Args:
        checkpoint: folder of the checkpoint.
        prefix: `model.` for the parameters, `optim.` for the optimizer state; removed from the names.
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
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state[key]


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
