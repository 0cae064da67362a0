"""From a training run or one of its checkpoints to a Hugging Face model folder."""

from dataclasses import dataclass
from pathlib import Path

from gpt2train.checkpoint.format import Dtype
from gpt2train.checkpoint.huggingface import write_model
from gpt2train.checkpoint.store import FOLDER, load_weights, newest
from gpt2train.config import CONFIG_FILE, RunConfig, read_run_config
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.errors import UserError


@dataclass(frozen=True)
class Source:
    """A checkpoint and the run it belongs to."""

    run: Path
    checkpoint: Path
    config: RunConfig


def merge(run_or_checkpoint: Path, output: Path, tokenizer: Path | None = None, dtype: Dtype = "float32") -> Source:
    """Write the model of a checkpoint as a Hugging Face folder, whole or not at all.

    Args:
        run_or_checkpoint: a run folder (its latest checkpoint is taken), or one folder of its `checkpoints/`.
        output: the folder to write; an older model folder there is replaced.
        tokenizer: the tokenizer folder of the training; searched beside the run's data where not given.
        dtype: what the weights are stored as.

    Raises:
        UserError: no run, no checkpoint, or a tokenizer that is not the training's.
    """
    source = find_source(run_or_checkpoint)
    folder = find_tokenizer(source, tokenizer)
    write_model(output, load_weights(source.checkpoint), source.config.shape, folder, dtype)
    return source


def find_source(path: Path) -> Source:
    """The checkpoint that a path means.

    Raises:
        UserError: it is neither a run folder with a checkpoint nor a checkpoint of a run.
    """
    if not path.is_dir():
        raise UserError(f"there is no folder {path}; give a run folder or one of its checkpoints")
    if (path / CONFIG_FILE).is_file():
        run, checkpoint = path, newest(path)
    elif path.parent.name == FOLDER and (path.parent.parent / CONFIG_FILE).is_file():
        run, checkpoint = path.parent.parent, path
    else:
        raise UserError(f"{path} is no run folder (no {CONFIG_FILE}) and no checkpoint of one (RUN/checkpoints/step-…)")
    return Source(run, checkpoint, read_run_config(run / CONFIG_FILE))


def find_tokenizer(source: Source, given: Path | None = None) -> Path:
    """The tokenizer folder of a run: the given one, `tokenizer/` in the run, or `tokenizer/` beside its `tokens/`.

    Raises:
        UserError: there is none, or the given one is not the one the run was trained with.
    """
    expected = source.config.tokenizer_hash
    if given is not None:
        if expected not in (None, tokenizer_hash(given)):
            raise UserError(f"the tokenizer {given} is not the one that {source.run} was trained with; give that one")
        return given
    data = Path(source.config.data.corpora[0].prefix)  # …/tokens/train/tokens
    for folder in (source.run / "tokenizer", *(parent / "tokenizer" for parent in list(data.parents)[:3])):
        # A folder that is found and not given must prove itself by its hash.
        if expected is not None and (folder / "vocab.json").is_file() and tokenizer_hash(folder) == expected:
            return folder
    raise UserError(f"the tokenizer of {source.run} is not beside its data; give its folder: --tokenizer DIR")
