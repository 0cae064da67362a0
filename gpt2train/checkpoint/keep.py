"""Which checkpoints stay: a draft becomes one, old ones go, and what a kill has left is put right."""

import math
import shutil
from pathlib import Path

from gpt2train.checkpoint.store import (
    BEST,
    FOLDER,
    LATEST,
    MANIFEST,
    TEMPORARY,
    CheckpointManifest,
    list_checkpoints,
    read_manifest,
)
from gpt2train.errors import RunError, UserError
from gpt2train.files import fsync, write_error


def publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    """Make a draft count: manifest, fsync, rename, `latest` and `best`; then let old ones go.

    A kill between any two of these leaves a run that goes on from the newest whole checkpoint; `tidy` mends the rest.
    """
    write_durably(draft / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    fsync(draft)
    if final.exists():  # a run that was sent back to an older checkpoint passes this step again
        remove(final)
    draft.rename(final)
    fsync(final.parent)
    _prune(final, keep, keep_best)


def tidy(run: str | Path) -> None:
    """Remove what killed saves have left, and let `latest` and `best` name what is there.

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
    """Those that were validated, the lowest loss first; of equal ones the oldest, since a later one is no better."""
    losses = [(_valid_loss(checkpoint), checkpoint.name, checkpoint) for checkpoint in checkpoints]
    return [checkpoint for loss, _, checkpoint in sorted(losses) if math.isfinite(loss)]


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; the manifest first, so that a half-removed folder is none."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def write_durably(path: Path, text: str) -> None:
    """Replace a small file, whole or not at all."""
    draft = path.with_name(path.name + TEMPORARY)
    draft.write_text(text, encoding="utf-8")
    fsync(draft)
    draft.replace(path)


def _prune(newest: Path, keep: int, keep_best: int) -> None:
    """Point at the newest checkpoint and the best, then remove those that are neither among the newest nor the best.

    Those of later steps go too: they are of a future that the run has left, or were damaged when it went on.
    """
    found = list_checkpoints(newest.parent.parent)
    lasting = [checkpoint for checkpoint in found if checkpoint.name <= newest.name]
    staying = {*lasting[-keep:], *best_first(lasting)[:keep_best]}
    _point(newest.parent, newest, best_first([checkpoint for checkpoint in lasting if checkpoint in staying]))
    for checkpoint in found:
        if checkpoint not in staying:
            remove(checkpoint)


def _point(folder: Path, newest: Path, best: list[Path]) -> None:
    write_durably(folder / LATEST, newest.name + "\n")
    if best:
        write_durably(folder / BEST, best[0].name + "\n")
    else:
        (folder / BEST).unlink(missing_ok=True)
    fsync(folder)


def _valid_loss(checkpoint: Path) -> float:
    try:
        loss = read_manifest(checkpoint).valid_loss
    except (UserError, RunError):  # damaged: it is not the best, and goes when it is old
        loss = None
    return math.inf if loss is None else loss
