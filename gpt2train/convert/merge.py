"""Merging of a run's checkpoint, of any layout, into a Hugging Face model folder."""

import math
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from gpt2train.checkpoint.store import open_weights, read_manifest, sha256
from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.convert.card_scores import scores_of
from gpt2train.convert.huggingface import card_text, check_free, fill_folder
from gpt2train.convert.model_card import CardFacts, training_facts
from gpt2train.convert.settings import CARD, Dtype
from gpt2train.convert.tensor_files import SAFETENSORS
from gpt2train.data.run_tokenizer import tokenizer_folders
from gpt2train.data.tokenizer import load_tokenizer, tokenizer_hash
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import UserError
from gpt2train.io.files import atomic_folder, check_folder
from gpt2train.io.run_folder import FOLDER, MANIFEST, selected_checkpoint


@dataclass(frozen=True)
class Source:
    """Checkpoint, and candidate folders of its tokenizer."""

    checkpoint: Path
    tokenizer_hash: str | None
    """Hash of the tokenizer that the weights were trained with."""
    tokenizer_candidates: tuple[Path, ...]
    """Folders that may hold the tokenizer."""


def merge(
    run_or_checkpoint: str | PathLike[str],
    output: str | PathLike[str],
    tokenizer: str | PathLike[str] | None = None,
    dtype: Dtype = "float32",
    license: str | None = None,
) -> Path:
    """Write the model of a checkpoint of any layout as a Hugging Face folder, atomically.

    The largest tensor is in memory as saved and as written: 0.71 times the written model in float32 and 1.14 times in
    bfloat16, if the embedding is 35 % of the weights and was saved in one piece.

    Args:
        run_or_checkpoint: run folder (for the checkpoint that its settings select), or a folder in its `checkpoints/`.
        output: folder to write; an older model folder is replaced.
        tokenizer: tokenizer folder of the training; by default the one next to the run's data.
        dtype: data type of the stored weights.
        license: licence of the weights, for the model card.

    Returns:
        The folder of the checkpoint.

    Raises:
        UserError: there is no run or no checkpoint, or the tokenizer is not the training's.
    """
    source, target = find_source(Path(run_or_checkpoint)), Path(output)
    check_free(target)  # before minutes of hashing
    with atomic_folder(target) as draft:
        fill(draft, source.checkpoint, Path(tokenizer) if tokenizer is not None else None, dtype, license)
    return source.checkpoint


def fill(
    folder: Path,
    run_or_checkpoint: Path,
    tokenizer: Path | None,
    dtype: Dtype,
    license: str | None = None,
) -> int:
    """Write the files of a merged model into an empty folder.

    Args:
        folder: empty folder.
        run_or_checkpoint: run folder (for the checkpoint that its settings select), or a checkpoint.
        tokenizer: tokenizer folder of the training; by default the one next to the run's data.
        dtype: data type of the stored weights.
        license: licence of the weights, for the model card.

    Returns:
        The number of parameters.
    """
    source = find_source(run_or_checkpoint)
    found = find_tokenizer(source, tokenizer)
    weights = open_weights(source.checkpoint)
    fill_folder(folder, weights, found, dtype)
    (folder / CARD).write_text(merged_card(folder, source.checkpoint, dtype, license), encoding="utf-8")
    return sum(math.prod(stored.size) for stored in weights.tensors.values())


def merged_card(
    folder: Path, checkpoint: Path, dtype: Dtype, license: str | None, sections: tuple[tuple[str, str], ...] = ()
) -> str:
    """Return the model card of a merged folder, with the run's scores of exactly these weights.

    Args:
        folder: merged folder; its weights are hashed.
        checkpoint: merged checkpoint.
        dtype: data type of the stored weights.
        license: licence of the weights.
        sections: further sections about the training data: title, Markdown.
    """
    facts = replace(card_facts(checkpoint), license=license, sections=sections)
    if run := _run_of(checkpoint):
        facts = replace(facts, scores=scores_of(run, sha256(folder / SAFETENSORS)))
    return card_text(open_weights(checkpoint).shape, dtype, load_tokenizer(folder), facts)


def card_facts(checkpoint: Path) -> CardFacts:
    """Return the model card's facts about the training that wrote a checkpoint."""
    return training_facts(read_manifest(checkpoint), _run_of(checkpoint))


def _run_of(checkpoint: Path) -> Path | None:
    return checkpoint.parent.parent if checkpoint.parent.name == FOLDER else None


def find_source(path: Path) -> Source:
    """Find the checkpoint of a path: that which a run's settings select, one of a run, or a converted one.

    Raises:
        UserError: the path is none of these.
    """
    check_folder(path)
    if (path / CONFIG_FILE).is_file():
        run, select = path, read_run_config(path / CONFIG_FILE).checkpoints.select
        checkpoint = selected_checkpoint(path, select)
    elif path.parent.name == FOLDER and (path.parent.parent / CONFIG_FILE).is_file():
        run, checkpoint = path.parent.parent, path
    elif (path / MANIFEST).is_file():
        return Source(path, read_manifest(path).tokenizer_hash, (path / "tokenizer",))
    else:
        raise UserError(f"{path} is neither a run folder (no {CONFIG_FILE}) nor a checkpoint (RUN/checkpoints/step-…)")
    config = read_run_config(run / CONFIG_FILE)
    return Source(checkpoint, config.tokenizer_hash, tokenizer_folders(run, config))


def find_tokenizer(source: Source, given: Path | None = None) -> Path:
    """Find the tokenizer folder of a checkpoint.

    Args:
        source: checkpoint.
        given: tokenizer folder given by the user; by default `tokenizer/` in the run or next to its `tokens/`.

    Raises:
        UserError: there is none, or the given one is not the training's.
    """
    expected = source.tokenizer_hash
    if given is not None:
        if expected not in (None, tokenizer_hash(given)):
            raise UserError(
                f"the tokenizer {given} is not the one that {source.checkpoint} was trained with; give that one"
            )
        return given
    for folder in source.tokenizer_candidates:
        # The user did not choose this folder, so its hash must match.
        if expected is not None and has_tokenizer(folder) and tokenizer_hash(folder) == expected:
            return folder
    if expected is None:
        found = next((str(folder) for folder in source.tokenizer_candidates if has_tokenizer(folder)), "DIR")
        raise UserError(f"{source.checkpoint} does not record its tokenizer; give its folder: --tokenizer {found}")
    raise UserError(
        f"the tokenizer of {source.checkpoint} is not next to it or its data; give its folder: --tokenizer DIR"
    )
