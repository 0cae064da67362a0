"""Input and result files of an evaluation, and the models that it scores, found without torch (2 s of CPU)."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from gpt2train.checkpoint.manifest import read_manifest, stored_shape
from gpt2train.config import CONFIG_FILE
from gpt2train.convert.detect import find_source, find_tokenizer
from gpt2train.data.tokenizer import Tokenizer, load_model_tokenizer
from gpt2train.errors import UserError, not_utf8
from gpt2train.inference.open_model import check_model
from gpt2train.inference.settings import ServingLayout
from gpt2train.model.families import check_decoder_alone, check_language_model
from gpt2train.store.files import check_folder, write_atomic
from gpt2train.store.hub import HUB, repository_of
from gpt2train.store.run_folder import FOLDER

ONE_MODEL = "--tp and --pp need one --model, in a command started without torchrun"
DATA_HASH_KEY = "data_sha256"  # key of every result; marks a file as a result
SCORES = "scores"  # next to a run's `checkpoints/`; `eval/` belongs to the flow


@dataclass(frozen=True)
class EvalSource:
    """Model to evaluate, before its weights are read."""

    folder: Path  # model folder, or checkpoint of a run
    is_checkpoint: bool
    tokenizer: Tokenizer
    scores: Path  # default folder of its scores


def read_input(path: Path) -> bytes:
    """Read a user's input file; UserError if it does not exist or cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error


def decode(raw: bytes, name: str) -> str:
    """Decode the text of an input file; UserError with its name if it is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: {not_utf8(error)}") from error


def data_fields(data: str, raw: bytes) -> dict[str, str]:
    """Return the fields of a result that identify its data file by name and content."""
    return {"data": data, DATA_HASH_KEY: hashlib.sha256(raw).hexdigest()}


def check_run(run: Path) -> None:
    """Check that a path is a run folder; UserError if it is not."""
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run} is not a run folder (no {CONFIG_FILE}); a curve needs the checkpoints of one run")


def find_models(
    models: Sequence[Path], output: Path | None, files: Sequence[str], layout: ServingLayout, tokenizer: Path | None
) -> list[EvalSource]:
    """Find the models of a command, and check that their results can be written.

    Args:
        models: folders, as `find_model`.
        output: file of the results, if the user gives one.
        files: names of the results in the folder of each model otherwise.
        layout: as `find_model`.
        tokenizer: as `find_model`.

    Raises:
        UserError: a model is given twice, or as `find_model`; one of several is distributed over processes; or a result
            cannot be written.
    """
    if layout.processes > 1 and len(models) > 1:
        raise UserError(ONE_MODEL)
    if twice := [path for path in models if models.count(path) > 1]:
        raise UserError(f"--model: {twice[0]} is given twice")
    if output is not None:
        check_output(output)
    sources = [find_model(path, layout, tokenizer) for path in models]
    for source, file in product(sources, files) if output is None else ():
        check_output(source.scores / file)
    return sources


def find_model(path: Path, layout: ServingLayout, tokenizer: Path | None = None) -> EvalSource:
    """Find a model; only a model folder can be distributed over several processes.

    Args:
        path: model folder, run folder (newest checkpoint, or best one by checkpoints.select), or checkpoint
            (RUN/checkpoints/step-…, or a converted one).
        layout: parallel layout.
        tokenizer: tokenizer folder of a checkpoint; by default the one next to its training data.

    Raises:
        UserError: the path is none of the three, is no decoder of texts, its tokenizer is not found, or the layout does
            not fit it.
        RunError: the checkpoint is damaged.
    """
    check_folder(path)
    if (path / "config.json").is_file():
        if tokenizer is not None:
            raise UserError(f"{path} is a model folder, which has its own tokenizer; leave out --tokenizer")
        shape = check_model(path, layout)
        check_decoder_alone(shape, path)
        return EvalSource(path, False, load_model_tokenizer(path, shape.vocab), score_folder(path))
    if layout.processes > 1:
        raise UserError(f"{path} is not a model folder, which --tp and --pp need; create one with gpt2train merge")
    try:
        source = find_source(path)
    except UserError as error:
        raise UserError(f"{path} is neither a model folder (no config.json) nor a run or a checkpoint") from error
    checkpoint = source.checkpoint
    shape = stored_shape(read_manifest(checkpoint), checkpoint)
    check_language_model(shape, checkpoint)
    check_decoder_alone(shape, path)
    opened = load_model_tokenizer(find_tokenizer(source, tokenizer), shape.vocab)
    in_run = checkpoint.parent.name == FOLDER
    scores = checkpoint.parent.parent / SCORES / checkpoint.name if in_run else checkpoint / "eval"
    return EvalSource(checkpoint, True, opened, scores)


def score_folder(model: Path) -> Path:
    """Folder of the results of a model: `eval` in it, or for a model of the hub, whose copy is a cache, here."""
    found = repository_of(model)
    return model / "eval" if found is None else Path("eval", found[0].removeprefix(HUB).replace("/", "--"))


def check_output(path: Path) -> None:
    """Check that a result may be written: to a new file, or over an older result.

    Raises:
        UserError: the path exists and is not a result, or its folder cannot be written to.
    """
    folder = next(one for one in path.absolute().parents if one.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UserError(f"{path} cannot be written, since {folder} is no folder of yours; give another --output")
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or DATA_HASH_KEY not in found:
        raise UserError(f"{path} already exists and contains no scores; give another --output")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, atomically; errors as `check_output`."""
    check_output(path)
    write_atomic(path, to_json(result))


def to_json(result: Mapping[str, Any]) -> bytes:
    """Content of the file of a result."""
    return json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n"
