"""Where a run goes on, and which settings it may change on its way."""

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from gpt2train.checkpoint import store
from gpt2train.checkpoint.store import CheckpointManifest, Position, StoredCorpus
from gpt2train.config import RunConfig
from gpt2train.data.stream import open_tokens
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import from_first, together

log = logging.getLogger("gpt2train")

# What the weights are: another value is another model.
SHAPE = ("model.layers", "model.heads", "model.hidden", "model.context", "vocab", "tokenizer_hash")
# What a run cannot change on its way: with another seed or other samples, its sample index would count something else.
# The rest may change: layout, batch, precision, learning rate, steps, dropout, how often is saved and validated.
FIXED = (*SHAPE, "seed", "samples")
UNSAID = ("output", "data", "checkpoints", "logging", "validation", "speed")  # no change of these changes the numbers
START = Position(step=0, samples=0, updates=0, skipped=0)
LOOKS, LOOK = 64, 1024  # tokens of a corpus that name it: so many pieces of so many


@dataclass(frozen=True)
class Found:
    """A checkpoint whose files were all found whole."""

    checkpoint: Path
    manifest: CheckpointManifest


def checkpoint_of(config: RunConfig, position: Position) -> Path:
    """Folder of the checkpoint at a position of a run."""
    return Path(config.output) / store.FOLDER / store.checkpoint_name(position.step)


def find_own(config: RunConfig, corpora: tuple[StoredCorpus, ...], group: dist.ProcessGroup | None) -> Found | None:
    """The checkpoint where a run goes on; None where it has none. All processes together.

    Raises:
        UserError: the run folder is of another model, tokenizer, seed or data, or beyond `steps`.
        RunError: there are checkpoints, and all of them are damaged: never a silent new start.
    """
    found = newest_whole(config.output, group)
    if found is not None:
        together(lambda: check_same_run(config, corpora, found.manifest, f"{config.output} holds"), group)
        log.info("going on from step %d", found.manifest.position.step)
        for key, before, now in _changes(found.manifest.config, config):
            log.info("changed since: %s from %s to %s", key, before, now)
    return found


def stored_corpora(config: RunConfig) -> tuple[StoredCorpus, ...]:
    """What names the training data of a run, wherever it lies."""
    corpora = []
    for corpus in config.data.corpora:
        data = open_tokens(corpus.prefix)
        count = len(data.tokens)
        digest = hashlib.sha256(np.ascontiguousarray(data.lengths, dtype="<i8").data)
        digest.update(np.ascontiguousarray(data.documents, dtype="<i8").data)
        for start in np.linspace(0, max(0, count - LOOK), LOOKS, dtype=np.int64).tolist():
            digest.update(data.tokens[start : start + LOOK].astype("<i8").data)
        share = corpus.weight / sum(other.weight for other in config.data.corpora)
        corpora.append(StoredCorpus(identity=digest.hexdigest(), tokens=count, share=share))
    return tuple(corpora)


def newest_whole(run: str, group: dist.ProcessGroup | None) -> Found | None:
    checkpoints = from_first(lambda: store.list_checkpoints(run), group)
    for checkpoint in reversed(checkpoints):
        try:
            return Found(checkpoint, verified(checkpoint, group))
        except RunError as error:
            log.warning("%s", error)
    if checkpoints:
        raise RunError(
            f"all {len(checkpoints)} checkpoints in {checkpoints[0].parent} are damaged; remove them to start anew"
        )
    return None


def verified(checkpoint: Path, group: dist.ProcessGroup | None) -> CheckpointManifest:
    """All processes share the reading: hashing 18 GB (1542m) takes one core half a minute, and the disk longer."""
    return together(lambda: store.verify(checkpoint, dist.get_rank(), dist.get_world_size()), group)


def check_same_run(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], manifest: CheckpointManifest, holder: str
) -> None:
    remedy = "give another output" if holder.endswith("holds") else "use start_with = 'optimizer'"
    check(config, manifest, FIXED, f"{holder} a run with", remedy)
    if manifest.data and (difference := _difference(config, manifest.data, corpora)):
        raise UserError(f"{holder} a run with other training data ({difference}); {remedy}")
    if manifest.position.step > config.steps:
        raise UserError(
            f"{config.output} stands at step {manifest.position.step}, beyond steps = {config.steps}; "
            "raise steps or give another output"
        )


def check(config: RunConfig, manifest: CheckpointManifest, keys: tuple[str, ...], holder: str, remedy: str) -> None:
    now, there = _flat(config.model_dump(mode="json")), _flat(manifest.config)
    for key in [key for key in now if key in keys or key.split(".")[0] in keys]:
        if now[key] != there.get(key):
            raise UserError(f"{holder} another {key} ({there.get(key)} there, {now[key]} now); {remedy}")


def _difference(config: RunConfig, before: tuple[StoredCorpus, ...], now: tuple[StoredCorpus, ...]) -> str | None:
    """What is other about the training data, by the name of the corpus; None where it is the same."""
    if len(before) != len(now):
        return f"{len(before)} corpora there, {len(now)} now"
    for corpus, there, here in zip(config.data.corpora, before, now, strict=True):
        if there.tokens != here.tokens:
            return f"{corpus.prefix} had {there.tokens:,} tokens there and has {here.tokens:,} now"
        if there.identity != here.identity:
            return f"{corpus.prefix} has other documents"
        if not math.isclose(there.share, here.share):
            return f"{corpus.prefix} had {there.share:.1%} of the samples there and has {here.share:.1%} now"
    return None


def _changes(before: Mapping[str, Any], config: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    there = _flat(before)
    for key, now in _flat(config.model_dump(mode="json")).items():
        if key.split(".")[0] not in UNSAID and key in there and there[key] != now:
            yield key, there[key], now


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
