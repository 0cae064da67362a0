"""Weights in another format as the start of a training (`checkpoints.init_from`)."""

import logging
from pathlib import Path

from gpt2train.checkpoint.init_from import REMEDY, InitialTensors
from gpt2train.config import RunConfig
from gpt2train.convert.detect import detect
from gpt2train.convert.opened_source import OpenedSource, open_source
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.errors import UserError

log = logging.getLogger("gpt2train")


def open_initial_weights(config: RunConfig, path: Path) -> InitialTensors:
    """Open a Hugging Face folder or a checkpoint of Megatron, for a run of the same model.

    A classifier may start from a language model; its output layer then has its initial values.

    Args:
        config: settings of the run.
        path: folder that `checkpoints.init_from` names.

    Raises:
        UserError: the folder has no known format, is damaged, or has another shape or tokenizer than the run.
    """
    try:
        kind = detect(path)
    except UserError as error:
        raise UserError(f"checkpoints.init_from: there is no checkpoint at {path}: {error}") from error
    opened = open_source(path, kind, vocab=config.vocab, heads=config.model.heads)
    _check_fits(config, opened, path)
    for note in opened.notes:
        log.warning("%s: %s", path, note)
    if opened.optimizer is None:
        return InitialTensors(opened.weights)
    return InitialTensors(opened.weights, opened.optimizer.tensors)


def _check_fits(config: RunConfig, opened: OpenedSource, path: Path) -> None:
    stored, current = opened.weights.shape, config.shape
    for key in ("family", "options", "layers", "heads", "hidden", "context", "vocab", "labels"):
        a, b = getattr(stored, key), getattr(current, key)
        if a != b and (key != "labels" or a):
            name = key if key == "vocab" else f"model.{key}"
            if key == "options" and a and b:  # the first that differs; one that is off is left out
                there, now = dict(a), dict(b)
                option = next(one for one in {**now, **there} if there.get(one) != now.get(one))
                a, b = ("on" if one is True else one for one in (there.get(option, "off"), now.get(option, "off")))
                name = f"{name}.{option}"
            name = "model.max_positions" if key == "context" and config.model.max_positions else name
            remedy = REMEDY if key == "vocab" else f"set it as there, or {REMEDY}"
            raise UserError(f"{path} has another {name} ({a} there, {b} now); {remedy}")
    expected = config.tokenizer_hash
    if opened.tokenizer is not None and expected not in (None, tokenizer_hash(opened.tokenizer)):
        raise UserError(f"{path} has another tokenizer than the training data; {REMEDY}")
