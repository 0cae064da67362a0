"""Checkpoints that are whole or not there.

    checkpoints/step-00000100/            written as step-00000100.tmp, renamed when every byte is on the disk
        __0_0.distcp, … .metadata         torch.distributed.checkpoint: one file a process
        manifest.json                     size and SHA-256 of each file; step, sample index, settings, tokenizer
    checkpoints/latest                    name of the newest one

Tensors have flat names free of any layout (`model.wte.weight`, `optim.wte.weight.exp_avg`), so that another layout can
load them. torch's own loader takes a flipped bit without a word; here hashes are compared first.
"""

import errno
import hashlib
import shutil
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
from gpt2train.errors import RunError, UserError
from gpt2train.files import fsync
from gpt2train.parallel.mesh import together
from gpt2train.settings import Settings

FOLDER = "checkpoints"
LATEST = "latest"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp"
FORMAT = 1
FULL = 1 << 20  # a disk with less than this free was full when a write failed


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
    """Steps that were skipped because the gradient was not finite."""


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


def verify(checkpoint: str | Path) -> CheckpointManifest:
    """Compare every file of a checkpoint with its manifest, sizes first, then hashes.

    Raises:
        UserError: there is no checkpoint at this place.
        RunError: a file is missing, truncated or altered; the message names it.
    """
    manifest = read_manifest(checkpoint)
    for name, stored in sorted(manifest.files.items()):
        path = Path(checkpoint) / name
        size = path.stat().st_size if path.is_file() else None
        if size != stored.bytes:
            what = "is missing" if size is None else f"has {size:,} bytes instead of {stored.bytes:,}"
            raise RunError(f"the checkpoint is damaged: {path} {what}; use another checkpoint")
        if _sha256(path) != stored.sha256:
            raise RunError(f"the checkpoint is damaged: {path} has changed since it was written; use another one")
    return manifest


def save(
    run: str | Path,
    state: Mapping[str, Tensor],
    position: Position,
    config: Mapping[str, Any],
    tokenizer_hash: str | None,
    keep: int,
) -> Path:
    """Write a checkpoint, all processes together; the oldest ones go when more than `keep` stand.

    Raises:
        RunError: the disk is full or cannot be written; the checkpoints before are untouched.
    """
    folder = Path(run) / FOLDER
    final, draft = folder / checkpoint_name(position.step), folder / (checkpoint_name(position.step) + TEMPORARY)
    first = dist.get_rank() == 0
    together(lambda: _fresh(draft) if first else None)
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(draft))
    except CheckpointException as error:  # a BaseException; the same one on every process
        raise _write_error(draft, next(iter(error.failures.values()))[0]) from error

    def describe() -> dict[str, StoredFile]:
        """The files that this process wrote; each hashes its own."""
        names = sorted(p.name for p in draft.glob(f"__{dist.get_rank()}_*")) + ([".metadata"] if first else [])
        return {n: StoredFile(bytes=(draft / n).stat().st_size, sha256=_sha256(draft / n)) for n in names}

    parts: list[dict[str, StoredFile] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, together(describe))
    manifest = CheckpointManifest(
        format=FORMAT,
        position=position,
        config=dict(config),
        tokenizer_hash=tokenizer_hash,
        torch=torch.__version__,
        files={name: stored for part in parts if part for name, stored in sorted(part.items())},
    )
    together(lambda: _publish(draft, final, manifest, keep) if first else None)
    return final


def sweep(run: str | Path) -> None:
    """Remove what killed saves have left."""
    for draft in sorted((Path(run) / FOLDER).glob(f"step-*{TEMPORARY}")):
        shutil.rmtree(draft)


def load(checkpoint: str | Path, state: Mapping[str, Tensor]) -> None:
    """Read a checkpoint into the tensors of `state`, in place, all processes together, on any layout.

    Raises:
        RunError: the checkpoint does not hold these tensors.
    """
    try:
        dcp.load(dict(state), storage_reader=SafeReader(checkpoint))
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise RunError(f"cannot load {checkpoint}: {reason}") from error


def load_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The model's parameters by name, whole, on the CPU; needs no process group.

    Raises:
        UserError: there is no checkpoint at this place.
        RunError: it is damaged.
    """
    verify(checkpoint)
    stored = SafeReader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in sorted(stored.items())
        if key.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():  # it warns that there is no process group, which is what no_dist says
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(weights, storage_reader=SafeReader(checkpoint), no_dist=True)
    return {key.removeprefix("model."): value for key, value in weights.items()}


def _fresh(draft: Path) -> None:
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    except OSError as error:
        raise _write_error(draft, error) from error


def _publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int) -> None:
    """Make a draft count: manifest, fsync, rename, `latest`; then let old ones go."""
    try:
        _write_durably(draft / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        fsync(draft)
        if final.exists():  # a run that was sent back to an older checkpoint passes this step again
            _remove(final)
        draft.rename(final)
        _write_durably(final.parent / LATEST, final.name + "\n")
        fsync(final.parent)
        for old in list_checkpoints(final.parent.parent)[:-keep]:
            if old != final:
                _remove(old)
    except OSError as error:
        raise _write_error(final, error) from error


def _remove(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()  # first, so that a half-removed folder is no checkpoint
    shutil.rmtree(checkpoint)


def _write_durably(path: Path, text: str) -> None:
    draft = path.with_name(path.name + TEMPORARY)
    draft.write_text(text, encoding="utf-8")
    fsync(draft)
    draft.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_error(place: Path, error: BaseException) -> RunError:
    # torch's writer reports a full disk as an "unexpected pos" of its zip file, so the disk itself is asked as well.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or (place.parent.exists() and shutil.disk_usage(place.parent).free < FULL):
        return RunError(f"no space left while saving {place}; free some and run again: earlier checkpoints are whole")
    return RunError(f"cannot save {place}: {error}; earlier checkpoints are whole")
