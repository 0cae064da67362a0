"""Pickles of others, read without running what they ask for.

Unpickling runs whatever code a file names. torch's `weights_only` unpickler builds tensors, plain containers and
numbers alone; what else a caller allows, by name, becomes an `Inert` object that has the parts and does nothing.
"""

import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gpt2train.errors import UserError


class Inert:
    """What stands in the place of an object of a class that is not loaded."""

    def __new__(cls, *arguments: Any) -> "Inert":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_pickle(file: Path, allowed: Iterable[tuple[type, str]] = ()) -> Any:
    """Read what `torch.save` wrote; tensors on the CPU, mapped into memory where the file is a zip.

    Args:
        file: of either of torch's two formats.
        allowed: a class to build, and the full name that the file may give it, beside tensors and plain containers.

    Raises:
        UserError: it cannot be read, or asks for anything else; the message names it, and nothing of it was run.
    """
    if not file.is_file():
        raise UserError(f"cannot read {file}: it is not there; copy the whole folder")
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise UserError(f"{file} is not read: a pickle can run code, and {_reason(error)}") from error
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"cannot read {file}: {said or type(error).__name__}; copy it again") from error


def _reason(error: BaseException) -> str:
    """What torch's unpickler has against a file, without its advice to switch the check off."""
    text = str(error)
    for mark in ("Unsupported global: GLOBAL ", "Trying to load unsupported GLOBAL "):
        if mark in text:
            return f"this one asks for {text.split(mark)[1].split()[0]}, which no model needs"
    lines = [line.strip() for line in text.splitlines() if "Unsupported" in line or "Trying" in line]
    return f"this one holds more than tensors ({(lines or [type(error).__name__])[-1][:200]})"
