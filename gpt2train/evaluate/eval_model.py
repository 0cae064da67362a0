"""Model to evaluate: a model folder, or an unmerged checkpoint of a run, of any layout."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt2train.checkpoint.store import open_weights
from gpt2train.convert.huggingface import check_language_model, read_model
from gpt2train.convert.merge import find_source, find_tokenizer
from gpt2train.convert.settings import Device
from gpt2train.data.tokenizer import Tokenizer, load_model_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.scoring_request import DistributedScorer
from gpt2train.inference.open_model import open_model
from gpt2train.inference.settings import ServingLayout
from gpt2train.io.files import check_folder
from gpt2train.io.run_folder import FOLDER
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import check_decoder_alone
from gpt2train.model.lazy_weights import empty_model

SCORES = "scores"  # next to a run's `checkpoints/`; `eval/` belongs to the flow


@dataclass(frozen=True)
class EvalModel:
    """Model, its tokenizer, and the default folder of its scores."""

    model: CausalLM | DistributedScorer
    tokenizer: Tokenizer
    scores: Path


@contextlib.contextmanager
def open_eval_model(
    path: Path, layout: ServingLayout, device: Device, tokenizer: Path | None = None
) -> Iterator[EvalModel]:
    """Open a model for the duration of a `with` block; only a model folder can be distributed over several processes.

    Args:
        path: model folder, run folder (for its latest checkpoint), or checkpoint.
        layout: parallel layout.
        device: device of the model; auto uses a GPU if there is one.
        tokenizer: tokenizer folder of a checkpoint; by default the one next to its training data.

    Raises:
        UserError: as `read_eval_model`, or the layout does not fit the model.
        gpt2train.inference.distributed_decoder.PeerLostError: inside the block, a process of the model was lost.
    """
    if layout.processes == 1:
        yield read_eval_model(path, device, tokenizer)
        return
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a model folder, which --tp and --pp need; create one with gpt2train merge")
    with open_model(path, layout, device) as distributed:
        yield EvalModel(distributed, load_model_tokenizer(path, distributed.shape.vocab), path / "eval")


def read_eval_model(path: Path, device: Device = "cpu", tokenizer: Path | None = None) -> EvalModel:
    """Read a model in one process.

    Args:
        path: model folder, run folder (for its latest checkpoint), or checkpoint (RUN/checkpoints/step-…, or a
            converted one).
        device: device of the model; auto uses a GPU if there is one.
        tokenizer: tokenizer folder of a checkpoint; by default the one next to its training data.

    Raises:
        UserError: the path is none of the three, its tokenizer is not found, or `device` is cuda and there is no GPU.
        RunError: the checkpoint is damaged.
    """
    check_folder(path)
    if (path / "config.json").is_file():
        if tokenizer is not None:
            raise UserError(f"{path} is a model folder, which has its own tokenizer; leave out --tokenizer")
        model = _decoder_alone(read_model(path, device), path)
        return EvalModel(model, load_model_tokenizer(path, model.shape.vocab), path / "eval")
    try:
        source = find_source(path)
    except UserError as error:
        raise UserError(f"{path} is neither a model folder (no config.json) nor a run or a checkpoint") from error
    found_tokenizer = find_tokenizer(source, tokenizer)
    checkpoint = source.checkpoint
    in_run = checkpoint.parent.name == FOLDER
    scores = checkpoint.parent.parent / SCORES / checkpoint.name if in_run else checkpoint / "eval"
    model = _decoder_alone(read_checkpoint(checkpoint, device), path)
    return EvalModel(model, load_model_tokenizer(found_tokenizer, model.shape.vocab), scores)


def _decoder_alone(model: CausalLM, path: Path) -> CausalLM:
    """Check that a model predicts each token of a text from those before it.

    Raises:
        UserError: it is an encoder-decoder.
    """
    check_decoder_alone(model.shape, path)
    return model


def read_checkpoint(checkpoint: Path, device: Device = "cpu") -> CausalLM:
    """Read the model of a checkpoint in float32, in evaluation mode.

    Raises:
        UserError: `device` is cuda and there is no GPU.
        RunError: the checkpoint is damaged.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU on this machine; use --device cpu")
    weights = open_weights(checkpoint)
    check_language_model(weights.shape, checkpoint)
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")
