"""Selection of the checkpoint to resume from, and checks of the settings that a run must not change."""

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpt2train.checkpoint.manifest import CheckpointManifest, StoredCorpus, verify
from gpt2train.config import RunConfig
from gpt2train.data.dataset import Dataset
from gpt2train.data.samples import validation_corpora
from gpt2train.data.sharded_dataset import open_tokens, tokens_identity
from gpt2train.errors import RunError, UserError
from gpt2train.model.gpt2_family import GPT2Options
from gpt2train.parallel.mesh import all_or_raise, broadcast_from_rank0
from gpt2train.settings import flatten
from gpt2train.store import run_folder
from gpt2train.store.counts import count_of

log = logging.getLogger("gpt2train")

# Settings that determine the weights: another value is another model.
MODEL = ("family", "options", "layers", "heads", "hidden", "max_positions", "labels")
SHAPE = (*(f"model.{name}" for name in MODEL), "vocab", "tokenizer_hash")
# Settings that determine the names of the optimizer's state in a checkpoint, which another value could not load.
OPTIMIZER = ("optimizer.name",)
# Settings that a run cannot change: with another seed or other samples, its sample index would have another meaning.
# All others may change: layout, batch, precision, learning rate, steps, dropout, intervals of saving and validation.
FIXED = ("model.context", *SHAPE, "objective", "seed", "documents")
# Groups whose change is not logged on resuming, since it does not affect the losses, but for some settings in them.
NOT_LOGGED_ON_CHANGE = ("output", "data", "checkpoints", "logging", "validation", "performance")
LOGGED_ON_CHANGE = ("performance.fp8", "performance.stream")


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """Checkpoint whose files have all been verified."""

    checkpoint: Path
    manifest: CheckpointManifest


def find_own(
    config: RunConfig,
    corpora: tuple[StoredCorpus, ...],
    group: dist.ProcessGroup | None,
    diverged: Collection[str] = (),
) -> VerifiedCheckpoint | None:
    """Find the checkpoint from which a run resumes, but a `diverged` one; None if it has none. Collective.

    Raises:
        UserError: the run folder has another model, tokenizer, seed or data, or is itself a checkpoint, or its
            checkpoints are a link to what is not there.
        RunError: all checkpoints are damaged; the run never silently restarts from scratch.
    """
    all_or_raise(lambda: _check_folder(config.output), group)
    found = newest_intact(config.output, group, diverged)
    if found is not None:
        all_or_raise(lambda: check_same_run(config, corpora, found.manifest, f"{config.output} holds"), group)
        log.info("resuming from step %d", found.manifest.position.step)
        _log_changes(flatten(found.manifest.config), flatten(config.model_dump(mode="json")), config.epochs > 0)
    return found


def _log_changes(before: Mapping[str, Any], now: Mapping[str, Any], epochs: bool) -> None:
    """Log the settings that affect the losses and that differ; files leave out one that is off."""
    for key in {**before, **now}:
        if key == "steps" and epochs:  # not computed yet
            continue
        there, here = (None if value == "off" else value for value in (before.get(key), now.get(key)))
        if there != here and (key in LOGGED_ON_CHANGE or key.split(".")[0] not in NOT_LOGGED_ON_CHANGE):
            shown = ("off" if value is None else value for value in (there, here))
            log.info("changed setting: %s from %s to %s", key, *shown)


def _check_folder(output: str) -> None:
    if (Path(output) / run_folder.MANIFEST).exists():
        remedy = "give it as checkpoints.init_from, and another output"
        raise UserError(f"{output} is a checkpoint, not the folder of a run: it would not be read; {remedy}")
    folder = Path(output) / run_folder.FOLDER
    newest = max((path.name for path in run_folder.list_checkpoints(output)), default="")
    newer = [path for path in run_folder.list_no_folders(output) if path.name > newest]
    for path in (folder, *newer):  # without the newest the run would fall back, and its save at that step fail
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to {path.readlink()}, which is not there; mount it, or remove the link")
        if path.exists() and not path.is_dir():
            what = "the folder of the checkpoints" if path == folder else "a checkpoint"
            raise UserError(f"{path} is a file, not {what}; remove it")


def validation_identity(config: RunConfig, data: Dataset | None = None) -> str | None:
    """Identity of the validation set: hash of its tokens, independent of their path, and number of samples.

    Opened data may have an identity of their own.
    """
    if data is not None and (identity := data.identity()) is not None:
        return f"{identity}:{config.validation.samples}"
    corpora, weights = validation_corpora(config), config.data.weights
    if not corpora:
        return None
    names = [tokens_identity(open_tokens(corpus.prefix, weights, "valid"))[0] for corpus in corpora]
    if len(corpora) > 1:
        names = [f"{name}*{corpus.weight:g}" for name, corpus in zip(names, corpora, strict=True)]
    return f"{'+'.join(names)}:{config.validation.samples}"


def stored_corpora(config: RunConfig, data: Dataset | None = None) -> tuple[StoredCorpus, ...]:
    """Identities of the training corpora of a run, independent of their paths; with a split, of their training part.

    Opened data may have an identity of their own.
    """
    corpora, weights = config.data.corpora, config.data.weights
    total = sum(corpus.weight for corpus in corpora)
    if data is not None and (identity := data.identity()) is not None:
        return tuple(StoredCorpus(identity=identity, tokens=0, share=corpus.weight / total) for corpus in corpora)
    found = [(*tokens_identity(open_tokens(corpus.prefix, weights)), corpus.weight / total) for corpus in corpora]
    return tuple(StoredCorpus(identity=name, tokens=count, share=share) for name, count, share in found)


def newest_intact(
    run: str, group: dist.ProcessGroup | None, diverged: Collection[str] = ()
) -> VerifiedCheckpoint | None:
    """Find and verify the newest intact checkpoint of a run, but a `diverged` one; None if it has none. Collective.

    Raises:
        RunError: all checkpoints are damaged or have weights that are not finite.
    """
    checkpoints, broken = broadcast_from_rank0(
        lambda: (run_folder.list_checkpoints(run), run_folder.list_without_manifest(run)), group
    )
    for folder in broken:
        # An interrupted removal leaves such folders too, but only older ones.
        if not checkpoints or folder.name > checkpoints[-1].name:
            removed = "; removing it" if checkpoints else ""
            log.warning("%s has no %s and cannot be used%s", folder, run_folder.MANIFEST, removed)
    for checkpoint in [found for found in reversed(checkpoints) if found.name not in diverged]:
        try:
            return VerifiedCheckpoint(checkpoint, verified(checkpoint, group))
        except RunError as error:
            log.warning("%s; falling back to the previous checkpoint", str(error).partition("; use another")[0])
    if checkpoints or broken:
        count, folder = len(checkpoints) + len(broken), Path(run) / run_folder.FOLDER
        found = f"all {count} checkpoints in {folder} are" if count > 1 else f"the only checkpoint in {folder} is"
        raise RunError(f"{found} damaged or not finite; remove what is there to start from scratch")
    return None


def verified(checkpoint: Path, group: dist.ProcessGroup | None) -> CheckpointManifest:
    """Verify the files of a checkpoint, each process a share of them, and return its manifest.

    Hashing 18 GB (1542m) takes one core half a minute, and reading takes the disk longer.
    """
    return all_or_raise(lambda: verify(checkpoint, dist.get_rank(), dist.get_world_size()), group)


def check_same_run(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], manifest: CheckpointManifest, holder: str
) -> None:
    """Check that a checkpoint is of a run with the same model, tokenizer, seed and data; `holder` begins the message.

    Raises:
        UserError: it does not.
    """
    remedy = "give another output" if holder.endswith("holds") else "use restore = 'optimizer'"
    check(config, manifest, FIXED, f"{holder} a run with", remedy)
    new = "start from its weights (another output, checkpoints.init_from, restore = 'weights')"
    check(config, manifest, OPTIMIZER, f"{holder} a run with", f"set it back, or {new}")
    if manifest.data and (difference := _difference(config, manifest.data, corpora)):
        raise UserError(f"{holder} a run with other training data ({difference}); {remedy}")


def check(config: RunConfig, manifest: CheckpointManifest, keys: tuple[str, ...], holder: str, remedy: str) -> None:
    """Raise a UserError for the first of some settings, or groups of them, that differs from a checkpoint's."""
    current, stored = _with_defaults(config.model_dump(mode="json")), _with_defaults(manifest.config)
    for key in [key for key in {**current, **stored} if f"{key}.".startswith(tuple(f"{name}." for name in keys))]:
        now, there = current.get(key), stored.get(key)
        # Files leave out an option that is off.
        if now != there and (now or there or (key in current and key in stored)):
            same = key == "model.max_positions" and now == current["model.context"]
            name = "model.context" if same else key  # max_positions is not set, or has no effect
            shown = f"{stored.get(key, 'off')} there, {current.get(key, 'off')} now"
            raise UserError(f"{holder} another {name} ({shown}); {remedy}")


def _with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings, and add what files leave out, such as the family, options of gpt2 and the positions."""
    left_out = {"model.family": "gpt2", "model.labels": 0, "objective.name": "next_token", "optimizer.name": "adamw"}
    flat = left_out | flatten(settings)
    if flat["model.family"] == "gpt2":
        options = {f"model.options.{name}": value for name, value in GPT2Options().model_dump().items()}
        flat = {"model.family": "gpt2"} | options | flat  # the family first, since a message names the first difference
    return flat | {"model.max_positions": flat.get("model.max_positions") or flat.get("model.context")}


def _difference(config: RunConfig, before: tuple[StoredCorpus, ...], now: tuple[StoredCorpus, ...]) -> str | None:
    """Describe how the training data differs, with the name of the corpus; None if it is the same."""
    if len(before) != len(now):
        return f"{count_of(len(before), 'corpus')} there, {len(now)} now"
    for corpus, there, here in zip(config.data.corpora, before, now, strict=True):
        if there.tokens != here.tokens:
            return f"{corpus.prefix} had {there.tokens:,} tokens there and has {here.tokens:,} now"
        if there.identity != here.identity:
            return f"{corpus.prefix} has other {'documents' if here.tokens else 'content'}"
        if not math.isclose(there.share, here.share):
            return f"{corpus.prefix} had {there.share:.1%} of the samples there and has {here.share:.1%} now"
    return None
