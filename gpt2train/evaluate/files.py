"""Input and result files of an evaluation."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt2train.config import CONFIG_FILE
from gpt2train.errors import UserError
from gpt2train.io.files import check_folder, write_atomic
from gpt2train.io.run_folder import MANIFEST

ONE_MODEL = "--tp and --pp need one --model, in a command started without torchrun"
DATA_HASH_KEY = "data_sha256"  # key of every result; marks a file as a result


def read_input(path: Path) -> bytes:
    """Read a user's input file.

    Raises:
        UserError: the file does not exist or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error


def decode(raw: bytes, name: str) -> str:
    """Decode the text of an input file.

    Args:
        raw: content of the file.
        name: name of the file, for the error message.

    Raises:
        UserError: the text is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def data_fields(data: str, raw: bytes) -> dict[str, str]:
    """Return the fields of a result that identify its data file.

    Args:
        data: name of the file.
        raw: content of the file.
    """
    return {"data": data, DATA_HASH_KEY: hashlib.sha256(raw).hexdigest()}


def check_run(run: Path) -> None:
    """Check that a path is a run folder.

    Raises:
        UserError: it is not.
    """
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run} is not a run folder (no {CONFIG_FILE}); a curve needs the checkpoints of one run")


def check_models(models: Sequence[Path], output: Path | None, processes: int) -> None:
    """Check the models of a command before torch is imported, which takes 2 s of CPU.

    Raises:
        UserError: a model is given twice, is neither a model folder nor a run or a checkpoint, or one of several and
            distributed over `processes`, or a result cannot be written to `output`.
    """
    if processes > 1 and len(models) > 1:
        raise UserError(ONE_MODEL)
    if twice := [path for path in models if models.count(path) > 1]:
        raise UserError(f"--model: {twice[0]} is given twice")
    if output is not None:
        check_output(output)
    for path in models:
        check_folder(path)
        files = (path / "config.json", path / CONFIG_FILE, path / MANIFEST, path.parent.parent / CONFIG_FILE)
        if not any(map(Path.is_file, files)):
            raise UserError(f"{path} is neither a model folder (no config.json) nor a run or a checkpoint")


def check_output(path: Path) -> None:
    """Check that a result may be written: to a new file, or over an older result.

    Raises:
        UserError: the path exists and is not a result.
    """
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or DATA_HASH_KEY not in found:
        raise UserError(f"{path} already exists and contains no scores; give another --output")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, atomically.

    Raises:
        UserError: the file cannot be written, or exists and is not a result.
    """
    check_output(path)
    write_atomic(path, to_json(result))


def to_json(result: Mapping[str, Any]) -> bytes:
    """Content of the file of a result."""
    return json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n"
