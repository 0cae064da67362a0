"""What lies in a folder: a Hugging Face model, a checkpoint of Megatron-LM, or a run or checkpoint of this project."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.format import Format
from gpt2train.checkpoint.huggingface import open_model
from gpt2train.checkpoint.megatron import is_megatron, open_megatron
from gpt2train.checkpoint.merge import find_source, find_tokenizer
from gpt2train.checkpoint.store import FOLDER, MANIFEST, open_weights
from gpt2train.checkpoint.weights import Weights
from gpt2train.config import CONFIG_FILE
from gpt2train.data.tokenizer import MERGES, VOCAB, load_tokenizer
from gpt2train.errors import UserError


@dataclass(frozen=True)
class Opened:
    """A model of any format, to be read tensor by tensor."""

    weights: Weights
    tokenizer: Path | None
    """A folder with its tokenizer, where one is known."""
    notes: tuple[str, ...] = ()
    """What a person should know: what was left out."""


def detect(path: Path) -> Format:
    """The format of a folder, by the files that only one format has.

    Raises:
        UserError: there is no folder, or it is of no known format.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; check the path")
    if any((path / name).exists() for name in (MANIFEST, CONFIG_FILE, FOLDER)):
        return "gpt2train"
    if is_megatron(path):
        return "megatron"
    if (path / "config.json").is_file():
        return "huggingface"
    raise UserError(
        f"{path} is no run or checkpoint ({CONFIG_FILE}, {MANIFEST}), no Hugging Face folder (config.json) and no "
        "Megatron-LM checkpoint (latest_checkpointed_iteration.txt, mp_rank_…)"
    )


def open_source(
    path: Path,
    kind: Format | None = None,
    *,
    tokenizer: Path | None = None,
    vocab: int | None = None,
    heads: int | None = None,
) -> Opened:
    """Open a model of any format.

    Args:
        path: its folder.
        kind: its format; looked at where not given.
        tokenizer: folder of its tokenizer, where it does not lie with the model.
        vocab: tokens of the tokenizer, for a Megatron-LM checkpoint without one.
        heads: attention heads, for a Megatron-LM checkpoint that does not say.

    Raises:
        UserError: it is not of this format, is damaged or incomplete, or does not say what it must.
        RunError: a checkpoint of this project is damaged.
    """
    kind = kind or detect(path)
    if kind == "megatron":
        if vocab is None and tokenizer is not None:
            vocab = load_tokenizer(tokenizer).get_vocab_size()
        found = open_megatron(path, vocab, heads)
        return Opened(found.weights, tokenizer, found.notes)
    if kind == "huggingface":
        weights = open_model(path)
        has_tables = (path / VOCAB).is_file() and (path / MERGES).is_file()
        return Opened(weights, tokenizer or (path if has_tables else None))
    source = find_source(path)
    place = None
    if tokenizer is not None:
        place = find_tokenizer(source, tokenizer)
    else:
        with contextlib.suppress(UserError):
            place = find_tokenizer(source)
    weights = open_weights(source.checkpoint)
    return Opened(weights, place, ("the optimizer's state and the position are left out",))
