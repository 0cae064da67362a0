"""From a training run or one of its checkpoints to a Hugging Face model folder, tensor by tensor."""

import math
from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.format import Dtype
from gpt2train.checkpoint.huggingface import check_free, fill_folder
from gpt2train.checkpoint.store import FOLDER, MANIFEST, newest, open_weights, read_manifest
from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.files import folder_whole


@dataclass(frozen=True)
class Source:
    """A checkpoint, and where its tokenizer may lie."""

    checkpoint: Path
    tokenizer_hash: str | None
    """Identity of the tokenizer that the weights belong to."""
    places: tuple[Path, ...]
    """Folders of which one may be the tokenizer's."""


def merge(run_or_checkpoint: Path, output: Path, tokenizer: Path | None = None, dtype: Dtype = "float32") -> Path:
    """Write the model of a checkpoint of any layout as a Hugging Face folder, whole or not at all.

    In memory are the largest tensor as it was saved and as it is written: 0.71 times the model in float32 and 1.14
    times in bfloat16, where the embedding is 35 % of the weights and was saved in one piece.

    Args:
        run_or_checkpoint: a run folder (its latest checkpoint is taken), or one folder of its `checkpoints/`.
        output: the folder to write; an older model folder there is replaced.
        tokenizer: the tokenizer folder of the training; searched beside the run's data where not given.
        dtype: what the weights are stored as.

    Returns:
        The checkpoint.

    Raises:
        UserError: no run, no checkpoint, or a tokenizer that is not the training's.
    """
    source = find_source(run_or_checkpoint)
    check_free(output)  # before minutes of hashing
    with folder_whole(output) as draft:
        fill(draft, source.checkpoint, tokenizer, dtype)
    return source.checkpoint


def fill(folder: Path, run_or_checkpoint: Path, tokenizer: Path | None, dtype: Dtype) -> int:
    """Write the files of a merged model into an empty folder; how many parameters it has."""
    source = find_source(run_or_checkpoint)
    found = find_tokenizer(source, tokenizer)
    weights = open_weights(source.checkpoint)
    fill_folder(folder, weights, found, dtype)
    return sum(math.prod(stored.size) for stored in weights.tensors.values())


def find_source(path: Path) -> Source:
    """The checkpoint that a path means: a run's latest one, one of a run, or one that was converted.

    Raises:
        UserError: it is none of these.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; give a run folder or one of its checkpoints")
    if (path / CONFIG_FILE).is_file():
        run, checkpoint = path, newest(path)
    elif path.parent.name == FOLDER and (path.parent.parent / CONFIG_FILE).is_file():
        run, checkpoint = path.parent.parent, path
    elif (path / MANIFEST).is_file():
        return Source(path, read_manifest(path).tokenizer_hash, (path / "tokenizer",))
    else:
        raise UserError(f"{path} is no run folder (no {CONFIG_FILE}) and no checkpoint of one (RUN/checkpoints/step-…)")
    config = read_run_config(run / CONFIG_FILE)
    data = Path(config.data.corpora[0].prefix)  # …/tokens/train/tokens
    beside = (parent / "tokenizer" for parent in list(data.parents)[:3])
    return Source(checkpoint, config.tokenizer_hash, (run / "tokenizer", *beside))


def find_tokenizer(source: Source, given: Path | None = None) -> Path:
    """The tokenizer folder of a checkpoint: the given one, or `tokenizer/` in its run or beside its `tokens/`.

    Raises:
        UserError: there is none, or the given one is not the one the run was trained with.
    """
    expected = source.tokenizer_hash
    if given is not None:
        if expected not in (None, tokenizer_hash(given)):
            raise UserError(
                f"the tokenizer {given} is not the one that {source.checkpoint} was trained with; give that one"
            )
        return given
    for folder in source.places:
        # A folder that is found and not given must prove itself by its hash.
        if expected is not None and (folder / "vocab.json").is_file() and tokenizer_hash(folder) == expected:
            return folder
    raise UserError(
        f"the tokenizer of {source.checkpoint} is not beside it or its data; give its folder: --tokenizer DIR"
    )
