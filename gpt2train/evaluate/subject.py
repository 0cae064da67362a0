"""What is evaluated: a model folder, or a checkpoint of a run as training left it, of any layout and not merged."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from gpt2train.checkpoint.format import Device
from gpt2train.checkpoint.huggingface import read_model
from gpt2train.checkpoint.merge import find_source, find_tokenizer
from gpt2train.checkpoint.store import FOLDER, open_weights
from gpt2train.checkpoint.weights import empty_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.span import Cut
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.opened import Parts, opened

SCORES = "scores"  # beside a run's `checkpoints/`; `eval/` belongs to the flow


@dataclass(frozen=True)
class Subject:
    """A model, its tokenizer, and where its scores go if nobody says."""

    model: GPT2 | Cut
    tokenizer: Tokenizer
    scores: Path


@contextlib.contextmanager
def open_subject(path: Path, parts: Parts, device: Device, tokenizer: Path | None = None) -> Iterator[Subject]:
    """Open what a path means, for as long as the block lasts: whole here, or a model folder over several processes.

    Raises:
        UserError: as `read_subject`, or parts that do not fit.
        gpt2train.parallel.decode.Lost: in the block, a process of the model is gone.
    """
    if parts.processes == 1:
        yield read_subject(path, device, tokenizer)
        return
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a model folder, which --tp and --pp need; make one by gpt2train merge")
    with opened(path, parts, device) as team:
        yield Subject(team, load_tokenizer(path), path / "eval")


def read_subject(path: Path, device: Device = "cpu", tokenizer: Path | None = None) -> Subject:
    """Read what a path means: a model folder, a run folder (its latest checkpoint), or a
    checkpoint (RUN/checkpoints/step-…, or a converted one).

    Args:
        tokenizer: folder of the training's tokenizer, for a checkpoint whose own is not beside its data.

    Raises:
        UserError: it is none of the three, its tokenizer is not found, or there is no GPU where one was asked for.
        RunError: the checkpoint is damaged.
    """
    if (path / "config.json").is_file():
        if tokenizer is not None:
            raise UserError(f"{path} is a model folder and brings its tokenizer; leave --tokenizer out")
        return Subject(read_model(path, device), load_tokenizer(path), path / "eval")
    try:
        source = find_source(path)
    except UserError as error:
        raise UserError(f"{path} is not a model folder (no config.json), no run and no checkpoint of one") from error
    words = load_tokenizer(find_tokenizer(source, tokenizer))
    checkpoint = source.checkpoint
    in_run = checkpoint.parent.name == FOLDER
    scores = checkpoint.parent.parent / SCORES / checkpoint.name if in_run else checkpoint / "eval"
    return Subject(read_checkpoint(checkpoint, device), words, scores)


def read_checkpoint(checkpoint: Path, device: Device = "cpu") -> GPT2:
    """The model of a checkpoint in float32, in evaluation mode.

    Raises:
        UserError: no GPU where one was asked for.
        RunError: the checkpoint is damaged.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch finds no GPU here; use --device cpu")
    weights = open_weights(checkpoint)
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")
