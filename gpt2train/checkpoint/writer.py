"""Atomic, collective writing of a checkpoint, removal of old ones, and clean-up after interrupted saves."""

import contextlib
import logging
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import get_crc32_options, set_crc32_options

from gpt2train.checkpoint.manifest import CheckpointManifest, StoredFile, read_manifest, sha256
from gpt2train.compat.torch import checkpoint_writer
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import all_or_raise
from gpt2train.store.files import (
    atomic_file,
    fsync,
    make_folder,
    make_way,
    missing_folder,
    no_space,
    probe_space,
    set_aside,
    write_error,
)
from gpt2train.store.run_folder import (
    BEST,
    FOLDER,
    LATEST,
    MANIFEST,
    MANIFEST_HASH,
    TEMPORARY,
    checkpoint_name,
    list_checkpoints,
    list_drafts,
    list_without_manifest,
)

log = logging.getLogger("gpt2train")


def write(
    run: str | Path,
    state: Mapping[str, Tensor],
    manifest: CheckpointManifest,
    keep: int,
    keep_best: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Write the tensors of this process and the rest of a checkpoint, and return its folder. Collective.

    Every process writes its file, fsyncs and hashes it. Then rank 0 publishes the checkpoint, with these `files` in its
    manifest, and removes older ones beyond the newest `keep` and the best `keep_best`.

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
        raise _save_error(draft, error) from error


def _write_tensors(draft: Path, state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    # torch's own checksums cost 5 times as much as writing (1.6 against 0.3 s of one core for 0.6 GB), and its loader
    # does not verify them. The manifest has SHA-256 hashes instead.
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        dcp.save(dict(state), storage_writer=checkpoint_writer(draft), process_group=group)
    except CheckpointException as error:  # a BaseException; the same one on every process
        raise _save_error(draft, next(iter(error.failures.values()))[0]) from error
    finally:
        set_crc32_options(before)


def _own_files(draft: Path) -> dict[str, StoredFile]:
    """Size and hash of the files that this process wrote."""
    names = sorted(path.name for path in draft.glob(f"__{dist.get_rank()}_*"))
    names += [".metadata"] if dist.get_rank() == 0 else []
    try:
        return {n: StoredFile(bytes=(draft / n).stat().st_size, sha256=sha256(draft / n)) for n in names}
    except OSError as error:
        raise _save_error(draft, error) from error


def _publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    for name in manifest.files:
        if not (draft / name).is_file():
            raise RunError(f"{draft / name} of another machine is not visible here; output must be on a shared disk")
    try:
        publish(draft, final, manifest, keep, keep_best)
    except OSError as error:
        raise _save_error(final, error) from error


def _save_error(path: Path, error: BaseException) -> RunError:
    full = no_space(error) if isinstance(error, OSError) else None
    # torch's writer reports a full disk as an "unexpected pos" of its zip file, so the disk itself is checked as well.
    size = 0
    with contextlib.suppress(OSError):  # other ranks write and remove files there
        size = max((file.stat().st_size for file in path.glob("*")), default=0)
    if full := full or probe_space(path.parent, size):
        remedy = f"{full.remedy} and run again: earlier checkpoints are intact"
        return RunError(f"{full.reason} while saving {path}; {remedy}")
    if (missing := missing_folder(path)) is not None:
        return RunError(f"cannot save {path}: the folder {missing} was removed; put it back, or run again")
    return RunError(f"cannot save {path}: {error}; earlier checkpoints are intact")


def publish(draft: Path, final: Path, manifest: CheckpointManifest, keep: int, keep_best: int) -> None:
    """Publish a draft: manifest, fsync, rename, update `latest` and `best`; then keep the newest and the best only.

    A kill between any two of these steps leaves a run that resumes from its newest complete checkpoint; `clean_up`
    repairs the rest.
    """
    write_manifest(draft, manifest)
    if final.exists() or final.is_symlink():  # a run that fell back to an older checkpoint reaches this step again
        remove(final)
    draft.rename(final)
    fsync(final.parent)
    _prune(final, keep, keep_best)


def write_manifest(checkpoint: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest of a checkpoint, and its hash, durably."""
    write_durably(checkpoint / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    write_durably(checkpoint / MANIFEST_HASH, f"{sha256(checkpoint / MANIFEST)}  {MANIFEST}\n")


def clean_up(run: str | Path) -> None:
    """Remove the remains of interrupted saves, and point `latest` and `best` to existing checkpoints.

    Raises:
        RunError: the disk is full.
        UserError: the run folder cannot be written.
    """
    folder = Path(run) / FOLDER
    for draft in list_drafts(run):
        shutil.rmtree(draft)
    for left in list_without_manifest(run):
        remove(left)
    if found := list_checkpoints(run):
        try:
            _point(folder, found[-1], best_first(found))
        except OSError as error:
            raise write_error(folder, error) from error


def best_first(checkpoints: list[Path]) -> list[Path]:
    """Sort the validated checkpoints by `checkpoints.best_metric` of the newest one, best first.

    Of equal metrics the lower loss comes first, of equal losses the oldest checkpoint. Checkpoints, given oldest first,
    that were validated on another set than the newest one are left out, and those without the metric come last.
    """
    manifests = {checkpoint: found for checkpoint in checkpoints if (found := _manifest(checkpoint))}
    sets = [manifest.validation for manifest in manifests.values() if manifest.validation]
    metrics = [manifest.config.get("checkpoints", {}).get("best_metric", "loss") for manifest in manifests.values()]
    ranked = [
        (-manifest.valid_metrics.get(metrics[-1], -math.inf), manifest.valid_loss, checkpoint.name, checkpoint)
        for checkpoint, manifest in manifests.items()
        if manifest.valid_loss is not None and (not sets or manifest.validation == sets[-1])
    ]
    return [checkpoint for _, loss, _, checkpoint in sorted(ranked) if math.isfinite(loss)]


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, or a link to one; the manifest first, so that a partly removed folder does not count.

    Files of the user in it, such as a model that was merged there, stay in a folder `step-….old`.
    """
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    found = list(checkpoint.iterdir())
    files = [path for path in found if path.is_file()]  # a checkpoint has no folders; one like `.git` is the user's
    own = [path for path in files if path.name.startswith((".", "__")) or path.suffix == TEMPORARY]
    if len(own) == len(found):
        shutil.rmtree(checkpoint)
        return
    for path in own:
        path.unlink()
    log.warning("%s has files of yours, which are kept in %s", checkpoint, set_aside(checkpoint))


def write_durably(path: Path, text: str) -> None:
    """Replace a small file atomically; a draft that a kill leaves is overwritten by the next one."""
    make_way(path, path.with_name(path.name + TEMPORARY))
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
        make_way(folder / BEST)
        (folder / BEST).unlink(missing_ok=True)
        fsync(folder)


def _manifest(checkpoint: Path) -> CheckpointManifest | None:
    try:
        return read_manifest(checkpoint)
    except (UserError, RunError):  # damaged: never the best, and removed when old
        return None
