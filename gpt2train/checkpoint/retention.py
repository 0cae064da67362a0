"""Checkpoint retention: publish a draft, remove old checkpoints, and clean up after interrupted saves."""

import math
import shutil
from pathlib import Path

from gpt2train.checkpoint.store import (
    CheckpointManifest,
    read_manifest,
)
from gpt2train.errors import RunError, UserError
from gpt2train.io.files import atomic_file, fsync, write_error
from gpt2train.io.run_folder import BEST, FOLDER, LATEST, MANIFEST, TEMPORARY, list_checkpoints


def publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    """Publish a draft: manifest, fsync, rename, update `latest` and `best`; then remove old checkpoints.

    A kill between any two of these steps leaves a run that resumes from its newest complete checkpoint; `clean_up`
    repairs the rest.

    Args:
        draft: folder with the files of the checkpoint.
        final: folder to rename it to.
        manifest: complete manifest.
        keep: number of newest checkpoints to keep.
        keep_best: number of checkpoints with the lowest validation loss to keep in addition.
    """
    write_durably(draft / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    if final.exists():  # a run that fell back to an older checkpoint reaches this step again
        remove(final)
    draft.rename(final)
    fsync(final.parent)
    _prune(final, keep, keep_best)


def clean_up(run: str | Path) -> None:
    """Remove the remains of interrupted saves, and point `latest` and `best` to existing checkpoints.

    Raises:
        RunError: the disk is full.
        UserError: the run folder cannot be written.
    """
    folder = Path(run) / FOLDER
    for left in sorted(folder.glob("step-*")):
        if left.name.endswith(TEMPORARY) or not (left / MANIFEST).exists():
            shutil.rmtree(left)
    if found := list_checkpoints(run):
        try:
            _point(folder, found[-1], best_first(found))
        except OSError as error:
            raise write_error(folder, error) from error


def best_first(checkpoints: list[Path]) -> list[Path]:
    """Sort the validated checkpoints by validation loss, lowest first; of equal losses the oldest comes first.

    Checkpoints with a loss on another validation set than the newest one are left out.

    Args:
        checkpoints: folders of checkpoints, oldest first.
    """
    manifests = {checkpoint: _manifest(checkpoint) for checkpoint in checkpoints}
    sets = [manifest.validation for manifest in manifests.values() if manifest and manifest.validation]
    losses = [
        (manifest.valid_loss, checkpoint.name, checkpoint)
        for checkpoint, manifest in manifests.items()
        if manifest and manifest.valid_loss is not None and (not sets or manifest.validation == sets[-1])
    ]
    return [checkpoint for loss, _, checkpoint in sorted(losses) if math.isfinite(loss)]


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, manifest first, so that a partly removed folder does not count as one."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def write_durably(path: Path, text: str) -> None:
    """Replace a small file atomically; a draft that a kill leaves is overwritten by the next one."""
    with atomic_file(path, path.with_name(path.name + TEMPORARY)) as draft:
        draft.write_text(text, encoding="utf-8")


def _prune(newest: Path, keep: int, keep_best: int) -> None:
    """Point `latest` and `best` to their checkpoints, then remove those that are neither among the newest nor the best.

    Checkpoints of later steps are removed too: they precede a fallback to an older checkpoint, or were damaged.
    """
    found = list_checkpoints(newest.parent.parent)
    current = [checkpoint for checkpoint in found if checkpoint.name <= newest.name]
    kept = {*current[-keep:], *best_first(current)[:keep_best]}
    _point(newest.parent, newest, best_first([checkpoint for checkpoint in current if checkpoint in kept]))
    for checkpoint in found:
        if checkpoint not in kept:
            remove(checkpoint)


def _point(folder: Path, newest: Path, best: list[Path]) -> None:
    write_durably(folder / LATEST, newest.name + "\n")
    if best:
        write_durably(folder / BEST, best[0].name + "\n")
    else:
        (folder / BEST).unlink(missing_ok=True)
        fsync(folder)


def _manifest(checkpoint: Path) -> CheckpointManifest | None:
    try:
        return read_manifest(checkpoint)
    except (UserError, RunError):  # damaged: never the best, and removed when old
        return None
