"""Initial state of a new run from `checkpoints.init_from`.

The source can be a checkpoint of a run (weights, optimizer and train state) or weights in another format, written with
any parallel layout.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.checkpoint import store
from gpt2train.checkpoint.resume import SHAPE, VerifiedCheckpoint, check, check_same_run, newest_intact, verified
from gpt2train.checkpoint.store import StoredCorpus
from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.io import run_folder
from gpt2train.model.families import SCORE
from gpt2train.model.lazy_weights import LazyWeights
from gpt2train.parallel.fsdp import copy_into_shard
from gpt2train.parallel.mesh import all_or_raise
from gpt2train.training.train_state import START, TrainState

log = logging.getLogger("gpt2train")

OpenWeights = Callable[[RunConfig, Path], LazyWeights]

REMEDY = "leave out checkpoints.init_from"


class InitialState(NamedTuple):
    """Initial state of a new run, and a collective function that fills the tensors of this process in place."""

    state: TrainState
    load: Callable[[Mapping[str, Tensor], dist.ProcessGroup | None], None]


def find_start(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], open_weights: OpenWeights, group: dist.ProcessGroup | None
) -> InitialState | None:
    """Open the checkpoint that `checkpoints.init_from` names; None if it is not set. Collective.

    Raises:
        UserError: the source has no known format, or another shape or tokenizer; with restore = "full" also other data.
        RunError: the source is damaged; of a run folder, all checkpoints are.
    """
    source = config.checkpoints.init_from
    if source is None:
        return None
    path = Path(source)
    if (path / run_folder.FOLDER).is_dir():
        found = newest_intact(source, group)
    elif (path / run_folder.MANIFEST).is_file():
        found = VerifiedCheckpoint(path, verified(path, group))
    else:
        weights = all_or_raise(lambda: open_weights(config, path), group)  # on every process: the disk is shared
        _weights_only(path, config.checkpoints.restore)
        log.info("loading the weights of %s", path)
        return InitialState(START, lambda tensors, _: copy_weights(tensors, weights))
    if found is None:
        raise UserError(f"checkpoints.init_from: there is no checkpoint at {source}; give a run folder or a checkpoint")
    return _from_run(config, corpora, found, group)


def _from_run(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], found: VerifiedCheckpoint, group: dist.ProcessGroup | None
) -> InitialState:
    source, restore = config.checkpoints.init_from, config.checkpoints.restore
    labels = store.stored_shape(found.manifest, found.checkpoint).labels
    if found.manifest.position.step == 0:  # a converted checkpoint, which has weights only
        restore = _weights_only(found.checkpoint, restore)
    if restore == "full":
        all_or_raise(lambda: check_same_run(config, corpora, found.manifest, f"{source} has"), group)
    else:
        known = None not in (found.manifest.tokenizer_hash, config.tokenizer_hash)
        keys = SHAPE if known else tuple(key for key in SHAPE if key != "tokenizer_hash")
        if config.model.labels and not labels:  # a classifier may start from a language model
            keys, restore = tuple(key for key in keys if key != "model.labels"), "weights"
        check(config, found.manifest, keys, f"{source} has", REMEDY)
    log.info("loading the %s of %s", "weights" if restore == "weights" else f"weights and {restore}", found.checkpoint)

    def load(tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
        selected = {
            name: tensor
            for name, tensor in tensors.items()
            if (restore != "weights" or name.startswith("model.")) and not _is_new(name, labels)
        }
        store.load(found.checkpoint, selected, group)

    return InitialState(found.manifest.position if restore == "full" else START, load)


def copy_weights(tensors: Mapping[str, Tensor], weights: LazyWeights) -> None:
    """Copy weights into the tensors of this process.

    Each process reads the tensors of its own pipeline stage one after the other and keeps its shard of each; nothing is
    sent. The processes of a machine share the pages of the disk cache.
    """
    for key, tensor in tensors.items():
        if key.startswith("model.") and not _is_new(key, weights.shape.labels):
            whole = weights.tensors[key.removeprefix("model.")].read(torch.float32)
            device = tensor.to_local().device if isinstance(tensor, DTensor) else tensor.device
            copy_into_shard(tensor, whole.to(device))


def _is_new(key: str, labels: int) -> bool:
    """Return True for the output layer of a classifier that starts from a language model, which has 0 labels."""
    return key == f"model.{SCORE}" and not labels


def _weights_only(path: Path, restore: str) -> Literal["weights"]:
    if restore == "full":
        raise UserError(f"{path} has weights only, no train state; use restore = 'weights'")
    return "weights"
