"""Inputs and results of an evaluation as files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt2train.errors import UserError
from gpt2train.files import write_whole

MARK = "data_sha256"  # every result has it, so that a file can be told to be one


def read_input(path: Path) -> bytes:
    """The bytes of a user's input file.

    Raises:
        UserError: it is not there or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error


def decode(raw: bytes, name: str) -> str:
    """The text of an input.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def about(data: str, raw: bytes) -> dict[str, str]:
    """What a result says of the data it was made with."""
    return {"data": data, MARK: hashlib.sha256(raw).hexdigest()}


def check_output(path: Path) -> None:
    """See that a result may be written there: to a new file, or over an older result.

    Raises:
        UserError: something else is there.
    """
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or MARK not in found:
        raise UserError(f"{path} is there already and holds no scores; give another --output")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, whole or not at all.

    Raises:
        UserError: it cannot be written, or something else than scores is there.
    """
    check_output(path)
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")
