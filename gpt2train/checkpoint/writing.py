"""Writing a checkpoint, all processes together: whole, or not there."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import get_crc32_options, set_crc32_options

from gpt2train.checkpoint.keep import publish
from gpt2train.checkpoint.store import (
    FOLDER,
    TEMPORARY,
    CheckpointManifest,
    StoredFile,
    checkpoint_name,
    sha256,
)
from gpt2train.errors import RunError
from gpt2train.files import FULL, is_full
from gpt2train.parallel.mesh import together


def write(
    run: str | Path,
    state: Mapping[str, Tensor],
    manifest: CheckpointManifest,
    keep: int,
    keep_best: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Write a checkpoint; older ones go when more than the newest `keep` and the best `keep_best` stand.

    Every process writes its file, forces it to the disk and hashes it; when all have, the first one makes it count.

    Args:
        run: the run folder, the same on every process.
        state: what this process holds, or its share of it.
        manifest: what to write down beside it; its `files` are filled in here.
        keep: newest checkpoints that stay.
        keep_best: checkpoints with the lowest validation loss that stay as well.
        group: of all processes, by which they wait for each other.

    Raises:
        RunError: on every process. The disk is full or cannot be written; the checkpoints before are untouched.
    """
    folder, name = Path(run) / FOLDER, checkpoint_name(manifest.position.step)
    final, draft = folder / name, folder / (name + TEMPORARY)
    first = dist.get_rank() == 0
    try:
        together(lambda: _fresh(draft) if first else None, group)
        together(lambda: _write_tensors(draft, state, group), group)
        parts: list[dict[str, StoredFile] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, together(lambda: _own_files(draft), group), group=group)
        files = {name: stored for part in parts if part for name, stored in sorted(part.items())}
        whole = manifest.model_copy(update={"files": files})
        together(lambda: _publish(draft, final, whole, keep, keep_best) if first else None, group)
    except RunError:
        if first:
            shutil.rmtree(draft, ignore_errors=True)  # a full disk is less full without it
        raise
    return final


def _fresh(draft: Path) -> None:
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    except OSError as error:
        raise _write_error(draft, error) from error


def _write_tensors(draft: Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    # torch's own checksums cost 5 times what writing does (1.6 against 0.3 s of one core for 0.6 GB), and its loader
    # does not look at them; ours are SHA-256.
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(draft, sync_files=True), process_group=group)
    except CheckpointException as error:  # a BaseException; the same one on every process
        raise _write_error(draft, next(iter(error.failures.values()))[0]) from error
    finally:
        set_crc32_options(before)


def _own_files(draft: Path) -> dict[str, StoredFile]:
    """The files that this process wrote; each hashes its own."""
    names = sorted(path.name for path in draft.glob(f"__{dist.get_rank()}_*"))
    names += [".metadata"] if dist.get_rank() == 0 else []
    try:
        return {n: StoredFile(bytes=(draft / n).stat().st_size, sha256=sha256(draft / n)) for n in names}
    except OSError as error:
        raise _write_error(draft, error) from error


def _publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    for name in manifest.files:
        if not (draft / name).is_file():
            raise RunError(f"{draft / name} of another machine is not seen here; output must lie on a shared disk")
    try:
        publish(draft, final, manifest, keep, keep_best)
    except OSError as error:
        raise _write_error(final, error) from error


def _write_error(place: Path, error: BaseException) -> RunError:
    # torch's writer reports a full disk as an "unexpected pos" of its zip file, so the disk itself is asked as well.
    if (isinstance(error, OSError) and error.errno in FULL) or is_full(place.parent):
        return RunError(f"no space left while saving {place}; free some and run again: earlier checkpoints are whole")
    return RunError(f"cannot save {place}: {error}; earlier checkpoints are whole")
