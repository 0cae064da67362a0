"""Opening of a model of any format, tensor by tensor."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.store import open_weights
from gpt2train.convert.detect import detect, find_source, find_tokenizer
from gpt2train.convert.huggingface import open_model
from gpt2train.convert.megatron import open_megatron
from gpt2train.convert.merge import card_facts
from gpt2train.convert.model_card import NO_FACTS, CardFacts
from gpt2train.convert.optimizer_state import OptimizerState, checkpoint_optimizer
from gpt2train.convert.settings import Format
from gpt2train.data.tokenizer import load_tokenizer, vocab_size
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.lazy_weights import LazyWeights
from gpt2train.store.files import check_folder
from gpt2train.store.hub import repository_of, with_commit


@dataclass(frozen=True)
class OpenedSource:
    """Model of any format, to be read tensor by tensor."""

    weights: LazyWeights
    tokenizer: Path | None
    """Tokenizer folder, if known."""
    facts: CardFacts = NO_FACTS
    """Facts about the training, for the model card."""
    notes: tuple[str, ...] = ()
    """Notes for the user: what is not converted, and the commit of a model of the hub."""
    optimizer: OptimizerState | None = None
    """State of the optimizer, if there is one."""
    is_run: bool = False
    """True for a run or checkpoint of this project, which has a position in the training."""


def open_source(
    path: Path,
    kind: Format | None = None,
    *,
    tokenizer: Path | None = None,
    vocab: int | None = None,
    heads: int | None = None,
) -> OpenedSource:
    """Open a model of any format.

    Args:
        path: folder of the model.
        kind: format of the model; detected by default.
        tokenizer: tokenizer folder, if the model's folder has none.
        vocab: vocabulary size, for a Megatron-LM checkpoint that does not record it.
        heads: number of attention heads, for a Megatron-LM checkpoint that does not record it.

    Raises:
        UserError: the model is not of this format, is damaged or incomplete, or lacks required information.
        RunError: a checkpoint of this project is damaged.
    """
    check_folder(path)
    kind = kind or detect(path)
    if kind in ("megatron", "megatron-core"):  # names and formats of both are detected
        if vocab is None and tokenizer is not None:
            vocab = vocab_size(load_tokenizer(tokenizer))
        found = open_megatron(path, vocab, heads)
        return OpenedSource(found.weights, tokenizer, notes=found.notes, optimizer=found.optimizer)
    if kind == "huggingface":
        weights = open_model(path)
        base = with_commit(path) if repository_of(path) else None
        notes = (f"the weights are those of {base}",) if base else ()
        found_tokenizer = tokenizer or (path if has_tokenizer(path) else None)
        return OpenedSource(weights, found_tokenizer, CardFacts(base=base), notes)
    source, found_tokenizer = find_source(path), None
    if tokenizer is not None:
        found_tokenizer = find_tokenizer(source, tokenizer)
    else:
        with contextlib.suppress(UserError):
            found_tokenizer = find_tokenizer(source)
    weights = open_weights(source.checkpoint)
    optimizer = checkpoint_optimizer(source.checkpoint)
    return OpenedSource(weights, found_tokenizer, card_facts(source.checkpoint), optimizer=optimizer, is_run=True)
