"""Initial state of a new run from `checkpoints.init_from`.

The source can be a checkpoint of a run (weights, optimizer and train state) or a model in another format, with or
without the state of its optimizer, written with any parallel layout.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.checkpoint import resume, store
from gpt2train.checkpoint.manifest import StoredCorpus, stored_shape
from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.model.families import SCORE
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.parallel.fsdp import copy_into_shard
from gpt2train.parallel.mesh import all_or_raise, broadcast_from_rank0
from gpt2train.store import run_folder
from gpt2train.store.hub import local_copy, model_address, pinned, with_commit
from gpt2train.training.train_state import START, TrainState

log = logging.getLogger("gpt2train")


class InitialTensors(NamedTuple):
    """Model of another format, and the state of its optimizer by the names of `AdamW.state`; empty if it has none."""

    weights: LazyWeights
    optimizer: Mapping[str, LazyTensor] = {}


OpenWeights = Callable[[RunConfig, Path], InitialTensors]

REMEDY = "leave out checkpoints.init_from"
WEIGHTS_ONLY = "use restore = 'weights'"


class InitialState(NamedTuple):
    """Initial state of a new run, a collective function that fills the tensors of this process in place, its source."""

    state: TrainState
    load: Callable[[Mapping[str, Tensor], dist.ProcessGroup | None], None]
    source: str = ""


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
    # One process asks for the commit, so that all read the same one; each machine has a copy of its own.
    address = broadcast_from_rank0(lambda: pinned(model_address(source)), group)
    path = all_or_raise(lambda: local_copy(address), group)
    if (path / run_folder.FOLDER).is_dir():
        found = resume.newest_intact(str(path), group)
    elif (path / run_folder.MANIFEST).is_file():
        found = resume.VerifiedCheckpoint(path, resume.verified(path, group))
    else:
        found_tensors = all_or_raise(lambda: open_weights(config, path), group)  # on every process: the disk is shared
        return _from_tensors(config, path, found_tensors)._replace(source=with_commit(path))
    if found is None:
        raise UserError(f"checkpoints.init_from: there is no checkpoint at {source}; give a run folder or a checkpoint")
    return _from_run(config, corpora, found, group)._replace(source=str(found.checkpoint))


def _from_tensors(config: RunConfig, path: Path, found: InitialTensors) -> InitialState:
    restore = config.checkpoints.restore
    _no_train_state(path, restore, bool(found.optimizer))
    new_head = config.model.labels > 0 and not found.weights.shape.labels
    optimizer = found.optimizer if restore == "optimizer" and not new_head else {}
    if optimizer and (name := config.optimizer.name) != "adamw":  # the only one that other formats have
        raise UserError(f"{path} has another optimizer.name (adamw there, {name} now); {WEIGHTS_ONLY}")
    log.info("loading the weights%s of %s", " and optimizer" if optimizer else "", with_commit(path))
    return InitialState(START, lambda tensors, _: copy_tensors(tensors, InitialTensors(found.weights, optimizer)))


def _from_run(
    config: RunConfig,
    corpora: tuple[StoredCorpus, ...],
    found: resume.VerifiedCheckpoint,
    group: dist.ProcessGroup | None,
) -> InitialState:
    source, restore = config.checkpoints.init_from, config.checkpoints.restore
    labels = stored_shape(found.manifest, found.checkpoint).labels
    if found.manifest.position.step == 0:  # a converted checkpoint, which has no train state
        has_optimizer = bool(store.open_tensors(found.checkpoint, "optim."))
        _no_train_state(found.checkpoint, restore, has_optimizer)
        restore = restore if has_optimizer else "weights"
    if restore == "full":
        all_or_raise(lambda: resume.check_same_run(config, corpora, found.manifest, f"{source} has"), group)
    else:
        known = None not in (found.manifest.tokenizer_hash, config.tokenizer_hash)
        keys = resume.SHAPE if known else tuple(key for key in resume.SHAPE if key != "tokenizer_hash")
        if config.model.labels and not labels:  # a classifier may start from a language model
            keys, restore = tuple(key for key in keys if key != "model.labels"), "weights"
        resume.check(config, found.manifest, keys, f"{source} has", REMEDY)
        if restore == "optimizer":
            resume.check(config, found.manifest, resume.OPTIMIZER, f"{source} has", WEIGHTS_ONLY)
    log.info("loading the %s of %s", "weights" if restore == "weights" else f"weights and {restore}", found.checkpoint)

    def load(tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
        selected = {
            name: tensor
            for name, tensor in tensors.items()
            if (restore != "weights" or name.startswith("model.")) and not _is_new(name, labels)
        }
        store.load(found.checkpoint, selected, group)

    return InitialState(found.manifest.position if restore == "full" else START, load)


def copy_tensors(tensors: Mapping[str, Tensor], source: InitialTensors) -> None:
    """Copy weights, and optimizer state if there is one, into the tensors of this process.

    Each process reads the tensors of its own pipeline stage one after the other and keeps its shard of each; nothing is
    sent. The processes of a machine share the pages of the disk cache.
    """
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if _is_new(key, source.weights.shape.labels):
            continue
        if kind == "model" or source.optimizer:
            held = source.weights.tensors if kind == "model" else source.optimizer
            if name not in held:
                raise UserError(f"checkpoints.init_from has no {name} of the optimizer; {WEIGHTS_ONLY}")
            whole = held[name].read(torch.float32)
            device = tensor.to_local().device if isinstance(tensor, DTensor) else tensor.device
            copy_into_shard(tensor, whole.to(device))


def _is_new(key: str, labels: int) -> bool:
    """Return True for the output layer of a classifier that starts from a language model, which has 0 labels."""
    return key == f"model.{SCORE}" and not labels


def _no_train_state(path: Path, restore: str, has_optimizer: bool) -> None:
    if restore == "full":
        what, use = ("weights and optimizer", "optimizer") if has_optimizer else ("weights", "weights")
        raise UserError(f"{path} has {what} only, no train state; use restore = '{use}'")
