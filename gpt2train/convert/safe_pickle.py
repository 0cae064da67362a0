"""Safe reading of untrusted pickles.

Unpickling runs the code that a file names. torch's `weights_only` unpickler builds only tensors, containers and
numbers. Other classes that a caller allows by name become `PickleStub` objects, which hold the data and do nothing.
"""

import contextlib
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from gpt2train.checkpoint.store import ALLOWED, GETATTR, member_of
from gpt2train.errors import UserError

METADATA_NAMES = ALLOWED | {
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),  # has no content; nothing of it is read
}


class PickleStub:
    """Inert replacement of an object whose class is not loaded."""

    def __new__(cls, *arguments: Any) -> "PickleStub":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _member_of(kind: Any, name: str) -> Any:
    return PickleStub(name) if kind is PickleStub else member_of(kind, name)


def read_pickle(file: Path, allowed: Iterable[tuple[type, str]] = (), inert: str | None = None) -> Any:
    """Read a file of `torch.save`; tensors are on the CPU, memory-mapped if the file is a zip.

    Args:
        file: file in either of torch's two formats.
        allowed: classes to build besides tensors and containers, with the full name that the file may use.
        inert: prefix of further names that become `PickleStub`, in a file of the newer format.

    Raises:
        UserError: the file cannot be read, or names another class; the message names it, and none of it was run.
    """
    if not file.is_file():
        raise UserError(f"cannot read {file}: it does not exist; copy the whole folder")
    classes: list[Any] = [*allowed, (_member_of, ".".join(GETATTR))]
    if inert is not None:
        with contextlib.suppress(Exception):  # a file that cannot be scanned cannot be read either: see below
            found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            classes += [(PickleStub, name) for name in found if name.startswith(inert)]
    try:
        with torch.serialization.safe_globals(classes):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise UserError(f"{file} is refused, as a pickle can run code: {_reason(error)}") from error
    except Exception as error:
        message = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"cannot read {file}: {message or type(error).__name__}; copy it again") from error


def _reason(error: BaseException) -> str:
    """Return the reason of torch's refusal, without its advice to disable the check."""
    text = str(error)
    for mark in ("Unsupported global: GLOBAL ", "Trying to load unsupported GLOBAL "):
        if mark in text:
            return f"it names {text.split(mark)[1].split()[0]}, which no model needs"
    lines = [line.strip() for line in text.splitlines() if "Unsupported" in line or "Trying" in line]
    return f"it contains more than tensors ({(lines or [type(error).__name__])[-1][:200]})"


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickler of the `.metadata` of torch.distributed.checkpoint, which Megatron-Core extends by its save plans."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == GETATTR:
            return member_of
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in METADATA_NAMES:
            return super().find_class(module, name)
        if module.startswith(("megatron.core.dist_checkpointing.", "torch.distributed.checkpoint.planner")):
            return PickleStub
        raise pickle.UnpicklingError(f"Unsupported global: GLOBAL {module}.{name} ")


def read_metadata(file: Path) -> Metadata:
    """Read the `.metadata` of a checkpoint of torch.distributed.checkpoint that others wrote.

    Raises:
        UserError: the file cannot be read, or names another class; the message names it, and none of it was run.
    """
    try:
        with file.open("rb") as stream:
            found = _MetadataUnpickler(stream).load()
        if not isinstance(found, Metadata):
            raise ValueError(f"it contains {type(found).__name__}")
    except Exception as error:  # a damaged pickle can fail in any way
        if isinstance(error, pickle.UnpicklingError) and "Unsupported global" in str(error):
            raise UserError(f"{file} is refused, as a pickle can run code: {_reason(error)}") from error
        raise UserError(f"cannot read {file}: {str(error)[:200] or type(error).__name__}; copy it again") from error
    return found
