"""Models of any format by their folders, found and checked without torch: it takes 2 s of CPU to import.

A format is Hugging Face's, Megatron-LM's, or that of a run or checkpoint of this project.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import CONFIG_FILE, read_run_settings
from gpt2train.convert.hf_config import check_weights, read_shape
from gpt2train.convert.megatron_folder import backend, is_megatron, iteration_folder
from gpt2train.convert.settings import Format
from gpt2train.data.run_tokenizer import tokenizer_folders
from gpt2train.data.tokenizer import load_tokenizer, tokenizer_hash
from gpt2train.data.tokenizer_reader import has_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.model.shape import Shape
from gpt2train.store.files import ADAPTER, adapter_alone, check_folder
from gpt2train.store.run_folder import FOLDER, MANIFEST, selected_checkpoint


@dataclass(frozen=True)
class Source:
    """Checkpoint, and candidate folders of its tokenizer."""

    checkpoint: Path
    tokenizer_hash: str | None
    """Hash of the tokenizer that the weights were trained with."""
    tokenizer_candidates: tuple[Path, ...]
    """Folders that may hold the tokenizer."""


def detect(path: Path) -> Format:
    """Detect the format of a folder by the files that only one format has.

    Raises:
        UserError: the folder does not exist, or its format is unknown.
    """
    check_folder(path)
    if any((path / name).exists() for name in (MANIFEST, CONFIG_FILE, FOLDER)):
        return "gpt2train"
    if is_megatron(path):
        return "megatron-core" if backend(iteration_folder(path)) else "megatron"
    if (path / "config.json").is_file():
        return "huggingface"
    if (path / ADAPTER).is_file():
        raise UserError(adapter_alone(path))
    raise UserError(
        f"{path} is not a run or checkpoint ({CONFIG_FILE}, {MANIFEST}), Hugging Face folder (config.json) or "
        "Megatron-LM checkpoint (latest_checkpointed_iteration.txt, mp_rank_…)"
    )


def vocabulary_of(path: Path) -> int | None:
    """Size of the vocabulary of a model without its weights being read; None if it cannot be found so."""
    with contextlib.suppress(UserError, RunError):
        kind = detect(path)
        if kind == "huggingface":
            return read_shape(path).vocab
        if kind == "gpt2train":
            size = read_manifest(find_source(path).checkpoint).config.get("vocab")
            return size if isinstance(size, int) else None
    return None


def check_source(path: Path, kind: Format | None = None, tokenizer: Path | None = None) -> Shape | None:
    """Check what a command is to open, as far as the weights need not be read.

    Returns:
        Shape of the model; None if it takes its weights to know it.

    Args:
        path: folder of the model.
        kind: format of the model; detected by default.
        tokenizer: tokenizer folder, if the user gives one.

    Raises:
        UserError: there is no model of this format, or no tokenizer.
    """
    check_folder(path)
    kind = kind or detect(path)
    shape = None
    if kind == "huggingface":
        shape = read_shape(path)
        check_weights(path)
    elif kind == "gpt2train":
        find_source(path)
    if tokenizer is not None:
        load_tokenizer(tokenizer)
    return shape


def find_source(path: Path) -> Source:
    """Find the checkpoint of a path: that which a run's settings select, one of a run, or a converted one.

    Raises:
        UserError: the path is none of these.
    """
    check_folder(path)
    if (path / CONFIG_FILE).is_file():
        run, checkpoint = path, selected_checkpoint(path, read_run_settings(path).checkpoints.select)
    elif path.parent.name == FOLDER and (path.parent.parent / CONFIG_FILE).is_file():
        run, checkpoint = path.parent.parent, path
    elif (path / MANIFEST).is_file():
        return Source(path, read_manifest(path).tokenizer_hash, (path / "tokenizer",))
    else:
        raise UserError(f"{path} is neither a run folder (no {CONFIG_FILE}) nor a checkpoint (RUN/checkpoints/step-…)")
    config = read_run_settings(run)
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
                f"the tokenizer {given} is not the one that {source.checkpoint} was trained with; give that"
            )
        return given
    for folder in source.tokenizer_candidates:
        # The user did not choose this folder, so its hash must match.
        if expected is not None and has_tokenizer(folder) and tokenizer_hash(folder) == expected:
            return folder
    if expected is None:
        found = next((str(folder) for folder in source.tokenizer_candidates if has_tokenizer(folder)), "DIR")
        raise UserError(f"{source.checkpoint} does not record its tokenizer; give its folder: --tokenizer {found}")
    raise UserError(f"no tokenizer of {source.checkpoint} next to it or its data; give its folder: --tokenizer DIR")
