"""What a new run begins with: weights of any format, on any layout; of a run also its optimizer and position."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpt2train.checkpoint import store
from gpt2train.checkpoint.formats import Opened, detect, open_source
from gpt2train.checkpoint.resume import SHAPE, START, Found, check, check_same_run, newest_whole, verified
from gpt2train.checkpoint.store import Position, StoredCorpus
from gpt2train.checkpoint.weights import Weights
from gpt2train.config import RunConfig
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.parallel.fsdp import put
from gpt2train.parallel.mesh import together

log = logging.getLogger("gpt2train")

REMEDY = "leave out checkpoints.init_from"


@dataclass(frozen=True)
class Beginning:
    """What a new run takes over."""

    position: Position
    load: Callable[[Mapping[str, Tensor], dist.ProcessGroup | None], None]
    """Fills the state of this process, in place; all processes together."""


def find_start(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], group: dist.ProcessGroup | None
) -> Beginning | None:
    """What `checkpoints.init_from` names; None where it names nothing. All processes together.

    Raises:
        UserError: there is nothing of a known format, or it is of another shape or tokenizer; for a position also of
            other data.
        RunError: it is damaged; of a run folder, every one.
    """
    place = config.checkpoints.init_from
    if place is None:
        return None
    path = Path(place)
    if (path / store.FOLDER).is_dir():
        found = newest_whole(place, group)
    elif (path / store.MANIFEST).is_file():
        found = Found(path, verified(path, group))
    else:
        return _of_elsewhere(config, path, group)
    if found is None:
        raise UserError(f"checkpoints.init_from: there is no checkpoint at {place}; give a run folder or a checkpoint")
    return _of_a_run(config, corpora, found, group)


def _of_a_run(
    config: RunConfig, corpora: tuple[StoredCorpus, ...], found: Found, group: dist.ProcessGroup | None
) -> Beginning:
    place, what = config.checkpoints.init_from, config.checkpoints.start_with
    if found.manifest.position.step == 0:  # converted: it has nothing else
        what = _weights_alone(found.checkpoint, what)
    if what == "position":
        together(lambda: check_same_run(config, corpora, found.manifest, f"{place} is of"), group)
    else:
        known = None not in (found.manifest.tokenizer_hash, config.tokenizer_hash)
        keys = SHAPE if known else tuple(key for key in SHAPE if key != "tokenizer_hash")
        check(config, found.manifest, keys, f"{place} is of", REMEDY)
    log.info("beginning with the %s of %s", "weights" if what == "weights" else f"weights and {what}", found.checkpoint)

    def load(state: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
        wanted = {name: tensor for name, tensor in state.items() if what != "weights" or name.startswith("model.")}
        store.load(found.checkpoint, wanted, group)

    return Beginning(found.manifest.position if what == "position" else START, load)


def _of_elsewhere(config: RunConfig, path: Path, group: dist.ProcessGroup | None) -> Beginning:
    """A Hugging Face folder or a checkpoint of Megatron-LM, which every process opens: the disk is shared."""

    def look() -> Weights:
        try:
            kind = detect(path)
        except UserError as error:
            raise UserError(f"checkpoints.init_from: there is no checkpoint at {path}: {error}") from error
        opened = open_source(path, kind, vocab=config.vocab, heads=config.model.heads)
        _check_fits(config, opened, path)
        return opened.weights

    weights = together(look, group)
    _weights_alone(path, config.checkpoints.start_with)
    log.info("beginning with the weights of %s", path)
    return Beginning(START, lambda state, _: fill(state, weights))


def fill(state: Mapping[str, Tensor], weights: Weights) -> None:
    """Put weights into the state of this process.

    Each process reads, one after the other, the tensors of its own pipeline stage, and keeps its share of each; nothing
    is sent. Processes of one machine read the same pages of the disk's cache.
    """
    for key, tensor in state.items():
        if key.startswith("model."):
            whole = weights.tensors[key.removeprefix("model.")].read(torch.float32)
            device = tensor.to_local().device if isinstance(tensor, DTensor) else tensor.device
            put(tensor, whole.to(device))


def _check_fits(config: RunConfig, opened: Opened, path: Path) -> None:
    there, now = opened.weights.shape, config.shape
    for key in ("layers", "heads", "hidden", "context", "vocab"):
        a, b = getattr(there, key), getattr(now, key)
        if a != b:
            name = key if key == "vocab" else f"model.{key}"
            raise UserError(f"{path} is of another {name} ({a} there, {b} now); {REMEDY}")
    expected = config.tokenizer_hash
    if opened.tokenizer is not None and expected not in (None, tokenizer_hash(opened.tokenizer)):
        raise UserError(f"{path} is of another tokenizer than the training data; {REMEDY}")


def _weights_alone(path: Path, what: str) -> Literal["weights"]:
    if what == "position":
        raise UserError(f"{path} has weights alone, no position; use start_with = 'weights'")
    return "weights"
