"""Checkpoints on the disk: what lies where, and how it is read.

    checkpoints/step-00000100/            written as step-00000100.tmp, renamed when every byte is on the disk
        __0_0.distcp, … .metadata         torch.distributed.checkpoint: one file a process
        manifest.json                     size and SHA-256 of each file; step, sample index, settings, tokenizer, data
    checkpoints/latest                    name of the newest one
    checkpoints/best                      name of the one with the lowest validation loss

Tensors have flat names free of any layout (`model.wte.weight`, `optim.wte.weight.exp_avg`), so that another layout can
load them. torch's own loader takes a flipped bit without a word; here hashes are compared first.
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
from pydantic import ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from gpt2train.checkpoint.reader import SafeReader
from gpt2train.checkpoint.weights import Stored, Weights
from gpt2train.errors import RunError, UserError
from gpt2train.model.shape import Shape
from gpt2train.scaler import LossScale
from gpt2train.settings import Settings
from gpt2train.spikes import History

FOLDER = "checkpoints"
LATEST, BEST = "latest", "best"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp"
FORMAT = 1


class StoredFile(Settings):
    """One file of a checkpoint."""

    bytes: int
    """Size."""
    sha256: str
    """Hash of the content, lower-case hex."""


class Position(Settings):
    """Where a run stands; with the weights and the optimizer this is its whole state."""

    step: int
    """Steps done. Dropout of a step is seeded by (seed, step, rank), so there is no generator to save."""
    samples: int
    """Samples used: the global index of the next one."""
    updates: int
    """Steps that changed the weights; the learning rate goes by these."""
    skipped: int
    """Steps that were skipped: the gradient was not finite, or a spike."""
    in_a_row: int = 0
    """Skipped steps since the last update."""
    scale: LossScale | None = None
    """Loss scale of fp16."""
    history: History = History()
    """What spikes are measured by."""


class StoredCorpus(Settings):
    """One of the corpora that a run is trained on."""

    identity: str
    """Hash of its documents' lengths and of a part of its tokens; the same wherever it lies."""
    tokens: int
    """How many it has."""
    share: float
    """Of the samples, 0 to 1."""


class CheckpointManifest(Settings):
    """`manifest.json`: what makes a folder a checkpoint."""

    format: int
    """Version of this layout on disk."""
    position: Position
    """Where the run stood."""
    config: dict[str, Any]
    """The run's settings, complete."""
    tokenizer_hash: str | None
    """Identity of the tokenizer that the weights belong to."""
    data: tuple[StoredCorpus, ...] = ()
    """The training data whose samples the position counts."""
    valid_loss: float | None = None
    """Validation loss of these weights, where they were validated."""
    torch: str
    """Version of torch that wrote it."""
    files: dict[str, StoredFile]
    """Every other file of the folder."""


def checkpoint_name(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}"


def list_checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a run folder that were completed, oldest first; whether they are intact is not looked at."""
    folder = Path(run) / FOLDER
    return sorted(p.parent for p in folder.glob(f"step-*/{MANIFEST}") if not p.parent.name.endswith(TEMPORARY))


def newest(run: str | Path) -> Path:
    """The newest checkpoint of a run folder.

    Raises:
        UserError: there is none.
    """
    found = list_checkpoints(run)
    if not found:
        raise UserError(f"no checkpoint in {Path(run) / FOLDER}; give the folder of a run that has saved one")
    return found[-1]


def read_manifest(checkpoint: str | Path) -> CheckpointManifest:
    """What a checkpoint says of itself.

    Raises:
        UserError: there is no checkpoint at this place.
        RunError: its manifest is damaged or of another version.
    """
    path = Path(checkpoint) / MANIFEST
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{checkpoint} is no checkpoint: it has no {MANIFEST}") from error
    except ValidationError as error:
        raise RunError(f"{path} is damaged or of another version; use another checkpoint") from error
    if manifest.format != FORMAT:
        raise RunError(f"{checkpoint} has format {manifest.format}, this version reads {FORMAT}")
    return manifest


def verify(checkpoint: str | Path, part: int = 0, of: int = 1) -> CheckpointManifest:
    """Compare the files of a checkpoint with its manifest, sizes first, then hashes.

    Args:
        checkpoint: its folder.
        part: which of the files to look at, where several processes share them: the `part`-th of every `of`.

    Raises:
        UserError: there is no checkpoint at this place.
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
            raise RunError(f"the checkpoint is damaged: {path} has changed since it was written; use another one")
    return manifest


def load(checkpoint: str | Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Read a checkpoint into the tensors of `state`, in place, all processes together, on any layout.

    Raises:
        RunError: the checkpoint does not hold these tensors.
    """
    try:
        dcp.load(dict(state), storage_reader=SafeReader(checkpoint), process_group=group)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise RunError(f"cannot load {checkpoint}: {reason}") from error


def load_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The model's parameters by name, whole, on the CPU, float32; needs no process group.

    Raises:
        UserError: there is no checkpoint at this place.
        RunError: it is damaged.
    """
    verify(checkpoint)
    return {name: stored.read(torch.float32) for name, stored in _tensors(checkpoint).items()}


def open_weights(checkpoint: str | Path) -> Weights:
    """The model of a checkpoint of any layout, to be read tensor by tensor; needs no process group.

    Raises:
        UserError: there is no checkpoint at this place.
        RunError: it is damaged, or does not say of what size the model is.
    """
    shape = stored_shape(verify(checkpoint), checkpoint)
    return Weights(shape, _tensors(checkpoint))


def stored_shape(manifest: CheckpointManifest, checkpoint: str | Path) -> Shape:
    """The sizes of a checkpoint's model, as its manifest has them.

    Raises:
        RunError: it has them not.
    """
    try:
        model = manifest.config["model"]
        return Shape(manifest.config["vocab"], model["layers"], model["heads"], model["hidden"], model["context"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{Path(checkpoint) / MANIFEST} does not say of what size the model is ({error})") from error


def _tensors(checkpoint: str | Path) -> dict[str, Stored]:
    reader = SafeReader(checkpoint)
    return {
        key.removeprefix("model."): Stored(tuple(entry.size), functools.partial(_read, reader, key, entry.size))
        for key, entry in sorted(reader.read_metadata().state_dict_metadata.items())
        if key.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }


def _read(reader: SafeReader, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """One tensor. Beside it is in memory, as stored, the largest piece that one process wrote of it."""
    state = {key: torch.empty(size, dtype=dtype)}
    with warnings.catch_warnings():  # it warns that there is no process group, which is what no_dist says
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state[key]


def sha256(path: Path) -> str:
    """Hash of a file's content, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
