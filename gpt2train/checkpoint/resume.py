"""What of a run goes into a checkpoint, and where a run goes on."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from gpt2train.checkpoint import store
from gpt2train.checkpoint.store import CheckpointManifest, Position
from gpt2train.config import RunConfig
from gpt2train.errors import RunError, UserError

log = logging.getLogger("gpt2train")

FIXED = ("model", "vocab", "tokenizer_hash", "seed")  # settings that a run cannot change on its way
START = Position(step=0, samples=0, updates=0, skipped=0)


def checkpoint_of(config: RunConfig, position: Position) -> Path:
    """Folder of the checkpoint at a position of a run."""
    return Path(config.output) / store.FOLDER / store.checkpoint_name(position.step)


def save_run(config: RunConfig, state: Mapping[str, Tensor], position: Position) -> None:
    """Save, all processes together, and say how long training stood still for it."""
    began = time.perf_counter()
    settings = config.model_dump(mode="json")
    folder = store.save(config.output, state, position, settings, config.tokenizer_hash, config.checkpoints.keep)
    log.info("saved %s in %.1f s", folder.name, time.perf_counter() - began)


def find_position(config: RunConfig) -> Position:
    """Where a run goes on: its newest intact checkpoint, or the beginning where it has none. For one process to ask.

    Raises:
        UserError: the run folder is of another model, tokenizer or seed, or beyond `steps`.
        RunError: there are checkpoints, and all of them are damaged: never a silent new start.
    """
    found = store.list_checkpoints(config.output)
    for checkpoint in reversed(found):
        try:
            manifest = store.verify(checkpoint)
        except RunError as error:
            log.warning("%s", error)
            continue
        _check_same_run(config, manifest)
        return manifest.position
    if found:
        raise RunError(f"all {len(found)} checkpoints in {found[0].parent} are damaged; remove them to start anew")
    return START


def _check_same_run(config: RunConfig, manifest: CheckpointManifest) -> None:
    now = config.model_dump(mode="json")
    for key in FIXED:
        there = manifest.config.get(key)
        if now[key] != there:
            raise UserError(
                f"{config.output} holds a run with another {key} ({there} there, {now[key]} now); give another output"
            )
    if manifest.position.step > config.steps:
        raise UserError(
            f"{config.output} stands at step {manifest.position.step}, beyond steps = {config.steps}; "
            "raise steps or give another output"
        )
