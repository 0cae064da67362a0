"""Model to evaluate: a model folder, or an unmerged checkpoint of a run, of any layout."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.store import open_weights
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.settings import Device
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import RunError
from gpt2train.evaluate.files import EvalSource, find_model
from gpt2train.evaluate.scoring_request import DistributedScorer
from gpt2train.inference.open_model import open_model
from gpt2train.inference.settings import ServingLayout
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.device import choose_device
from gpt2train.model.families import check_language_model
from gpt2train.model.lazy_weights import empty_model


@dataclass(frozen=True)
class EvalModel:
    """Model and its tokenizer."""

    model: CausalLM | DistributedScorer
    tokenizer: Tokenizer


@contextlib.contextmanager
def open_eval_model(source: EvalSource, layout: ServingLayout, device: Device) -> Iterator[EvalModel]:
    """Open a model for the duration of a `with` block; the device auto is a GPU if there is one.

    Raises:
        UserError: a file of the model is damaged, or there is no such device.
        RunError: the checkpoint is damaged.
        gpt2train.inference.distributed_decoder.PeerLostError: inside the block, a process of the model was lost.
    """
    if layout.processes == 1:
        read = read_checkpoint if source.is_checkpoint else read_model
        opened = EvalModel(read(source.folder, device), source.tokenizer)
        with named(source.folder):
            yield opened
        return
    with open_model(source.folder, layout, device) as distributed, named(source.folder):
        yield EvalModel(distributed, source.tokenizer)


@contextlib.contextmanager
def named(model: Path) -> Iterator[None]:
    """Begin the message of an error in the scoring of a model with its folder."""
    try:
        yield
    except RunError as error:
        raise type(error)(f"{model}: {error}") from error


def read_eval_model(path: Path, device: Device = "cpu", tokenizer: Path | None = None) -> EvalModel:
    """Read a model in one process; arguments and errors as `find_model` and `open_eval_model`."""
    with open_eval_model(find_model(path, ServingLayout(), tokenizer), ServingLayout(), device) as opened:
        return opened


def read_checkpoint(checkpoint: Path, device: Device = "cpu") -> CausalLM:
    """Read the model of a checkpoint in float32, in evaluation mode.

    Raises:
        UserError: there is no such device.
        RunError: the checkpoint is damaged.
    """
    chosen = choose_device(device, option="--device")
    weights = open_weights(checkpoint)
    check_language_model(weights.shape, checkpoint)
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    return model.requires_grad_(False).eval().to(chosen)
