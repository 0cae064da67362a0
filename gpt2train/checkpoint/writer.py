"""Atomic, collective writing of a checkpoint."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import get_crc32_options, set_crc32_options

from gpt2train.checkpoint.retention import publish
from gpt2train.checkpoint.store import (
    CheckpointManifest,
    StoredFile,
    sha256,
)
from gpt2train.errors import RunError
from gpt2train.io.files import DISK_FULL_ERRNOS, is_full, make_folder
from gpt2train.io.run_folder import FOLDER, TEMPORARY, checkpoint_name
from gpt2train.parallel.mesh import all_or_raise


def write(
    run: str | Path,
    state: Mapping[str, Tensor],
    manifest: CheckpointManifest,
    keep: int,
    keep_best: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Write a checkpoint, and remove older ones beyond the newest `keep` and the best `keep_best`. Collective.

    Every process writes its file, fsyncs and hashes it; then rank 0 publishes the checkpoint.

    Args:
        run: run folder, the same on every process.
        state: tensors that this process writes.
        manifest: manifest of the checkpoint; its `files` are filled in here.
        keep: number of newest checkpoints to keep.
        keep_best: number of checkpoints with the lowest validation loss to keep in addition.
        group: process group for synchronisation; None uses the default group.

    Returns:
        The folder of the checkpoint.

    Raises:
        RunError: on every process, if the disk is full or cannot be written; earlier checkpoints are untouched.
    """
    folder, name = Path(run) / FOLDER, checkpoint_name(manifest.position.step)
    final, draft = folder / name, folder / (name + TEMPORARY)
    first = dist.get_rank() == 0
    try:
        all_or_raise(lambda: _empty_folder(draft) if first else None, group)
        all_or_raise(lambda: _write_tensors(draft, state, group), group)
        parts: list[dict[str, StoredFile] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, all_or_raise(lambda: _own_files(draft), group), group=group)
        files = {name: stored for part in parts if part for name, stored in sorted(part.items())}
        whole = manifest.model_copy(update={"files": files})
        all_or_raise(lambda: _publish(draft, final, whole, keep, keep_best) if first else None, group)
    except RunError:
        if first:
            shutil.rmtree(draft, ignore_errors=True)  # free its space, since the disk may be full
        raise
    return final


def _empty_folder(draft: Path) -> None:
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft.parent)
        draft.mkdir()
    except OSError as error:
        raise _write_error(draft, error) from error


def _write_tensors(draft: Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    # torch's own checksums cost 5 times as much as writing (1.6 against 0.3 s of one core for 0.6 GB), and its loader
    # does not verify them. The manifest has SHA-256 hashes instead.
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(draft, sync_files=True), process_group=group)
    except CheckpointException as error:  # a BaseException; the same one on every process
        raise _write_error(draft, next(iter(error.failures.values()))[0]) from error
    finally:
        set_crc32_options(before)


def _own_files(draft: Path) -> dict[str, StoredFile]:
    """Size and hash of the files that this process wrote."""
    names = sorted(path.name for path in draft.glob(f"__{dist.get_rank()}_*"))
    names += [".metadata"] if dist.get_rank() == 0 else []
    try:
        return {n: StoredFile(bytes=(draft / n).stat().st_size, sha256=sha256(draft / n)) for n in names}
    except OSError as error:
        raise _write_error(draft, error) from error


def _publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    for name in manifest.files:
        if not (draft / name).is_file():
            raise RunError(f"{draft / name} of another machine is not visible here; output must be on a shared disk")
    try:
        publish(draft, final, manifest, keep, keep_best)
    except OSError as error:
        raise _write_error(final, error) from error


def _write_error(path: Path, error: BaseException) -> RunError:
    # torch's writer reports a full disk as an "unexpected pos" of its zip file, so the disk itself is checked as well.
    if (isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS) or is_full(path.parent):
        return RunError(f"no space left while saving {path}; free some and run again: earlier checkpoints are intact")
    return RunError(f"cannot save {path}: {error}; earlier checkpoints are intact")
