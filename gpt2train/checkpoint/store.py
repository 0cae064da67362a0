"""Layout of checkpoints on disk, and reading them.

    checkpoints/step-00000100/            written as step-00000100.tmp, renamed when every byte is on disk
        __0_0.distcp, … .metadata         torch.distributed.checkpoint: one file per process
        manifest.json                     size and SHA-256 of each file; step, sample index, settings, tokenizer, data
    checkpoints/latest                    name of the newest checkpoint
    checkpoints/best                      name of the checkpoint with the lowest validation loss

Tensors have flat names that do not depend on the parallel layout (`model.wte.weight`, `optim.wte.weight.exp_avg`), so
that another layout can load them. torch's own loader does not detect a flipped bit; here hashes are compared first.
"""

import functools
import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pydantic import Field, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpt2train.checkpoint.safe_reader import SafeReader
from gpt2train.errors import RunError, UserError
from gpt2train.io.run_folder import MANIFEST
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.model.shape import Shape
from gpt2train.settings import Settings
from gpt2train.training.train_state import TrainState

FORMAT = 1


class StoredFile(Settings):
    """File of a checkpoint."""

    bytes: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, lower-case hex."""


class StoredCorpus(Settings):
    """Training corpus of a run, as stored in checkpoints."""

    identity: str
    """Hash of its document lengths and of a sample of its tokens, independent of its path."""
    tokens: int
    """Number of tokens."""
    share: float
    """Share of the samples, 0 to 1."""


class CheckpointManifest(Settings):
    """Content of `manifest.json`, whose presence makes a folder a checkpoint."""

    format: int
    """Version of the layout on disk."""
    position: TrainState
    """Train state of the run."""
    config: dict[str, Any]
    """Complete settings of the run."""
    tokenizer_hash: str | None
    """Hash of the tokenizer that the weights belong to."""
    data: tuple[StoredCorpus, ...] = ()
    """Training corpora, whose samples `position.samples` counts."""
    validation: str | None = None
    """Identity of the validation set; losses of different sets are not compared."""
    valid_loss: float | None = Field(None, allow_inf_nan=True)
    """Validation loss of these weights, if they were validated."""
    torch: str
    """Version of torch that wrote the checkpoint."""
    files: dict[str, StoredFile]
    """All other files of the folder, by name."""


def read_manifest(checkpoint: str | Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: its manifest is damaged or has another format version.
    """
    path = Path(checkpoint) / MANIFEST
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint} is not a checkpoint: it has no {MANIFEST}") from error
    except ValidationError as error:
        raise RunError(f"{path} is damaged or has another format version; use another checkpoint") from error
    if manifest.format != FORMAT:
        raise RunError(f"{checkpoint} has format {manifest.format}, but this version reads {FORMAT}")
    return manifest


def verify(checkpoint: str | Path, part: int = 0, of: int = 1) -> CheckpointManifest:
    """Compare the files of a checkpoint with its manifest, sizes first, then hashes.

    Args:
        checkpoint: folder of the checkpoint.
        part: index of this process if several processes share the files; it verifies every `of`-th file.
        of: number of processes that share the files.

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
            raise RunError(
                f"the checkpoint is damaged: {path} has changed since it was written; use another checkpoint"
            )
    return manifest


def load(checkpoint: str | Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Read a checkpoint into the tensors of `state`, in place, on any layout. Collective.

    Raises:
        RunError: the checkpoint lacks some of these tensors.
    """
    try:
        dcp.load(dict(state), storage_reader=SafeReader(checkpoint), process_group=group)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise RunError(f"cannot load {checkpoint}: {reason}") from error


def open_weights(checkpoint: str | Path) -> LazyWeights:
    """Open the model of a checkpoint of any layout, to be read tensor by tensor, without a process group.

    Raises:
        UserError: there is no checkpoint at this path.
        RunError: the checkpoint is damaged, or its manifest lacks the sizes of the model.
    """
    shape = stored_shape(verify(checkpoint), checkpoint)
    return LazyWeights(shape, open_tensors(checkpoint))


def stored_shape(manifest: CheckpointManifest, checkpoint: str | Path) -> Shape:
    """Sizes of a checkpoint's model, from its manifest.

    Raises:
        RunError: the manifest lacks them.
    """
    try:
        model = manifest.config["model"]
        positions = model.get("max_positions") or model["context"]
        return Shape(manifest.config["vocab"], model["layers"], model["heads"], model["hidden"], positions)
    except (KeyError, TypeError) as error:
        raise RunError(f"{Path(checkpoint) / MANIFEST} lacks the sizes of the model ({error})") from error


def open_tensors(checkpoint: str | Path) -> dict[str, LazyTensor]:
    """Open the model's parameters by name, unsharded, without verifying the checkpoint."""
    reader = SafeReader(checkpoint)
    return {
        key.removeprefix("model."): LazyTensor(tuple(entry.size), functools.partial(_read, reader, key, entry.size))
        for key, entry in sorted(reader.read_metadata().state_dict_metadata.items())
        if key.startswith("model.") and isinstance(entry, TensorStorageMetadata)
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
