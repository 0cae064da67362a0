"""Relative paths that a file names, checked so that they stay in the folder that the file describes.

Manifests, records, indexes and checkpoints may come from strangers. A model that is read from a file declares such a
field as `InnerPath`; other readers call `inner_path`.
"""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from gpt2train.errors import UserError

_FORBIDDEN = re.compile(r"[\\\0]|^[A-Za-z]:")  # other separators, and a drive of Windows


def is_inner(name: str) -> bool:
    """Return True for a relative path, with forward slashes, that stays in its folder."""
    return not _FORBIDDEN.search(name) and {"", ".", ".."}.isdisjoint(name.split("/"))


def inner_path(name: object, place: object) -> str:
    """Return a relative path that a file names.

    The place is the file that names it.

    Raises:
        UserError: the path is absolute, or could lead out of its folder.
    """
    if isinstance(name, str) and is_inner(name):
        return name
    raise UserError(f"{place} names the file {str(name)[:100]!r}, which is not inside of its folder; do not use it")


def inner_file(folder: Path, name: str, place: object) -> Path:
    """Return the path of a file that a file names; UserError if the name, or a link, leads out of the folder."""
    path = folder / inner_path(name, place)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} is a link out of {folder}; put the file itself there")
    return path


def _validate(name: str, info: ValidationInfo) -> str:
    """Check a field; the file that is read is the context `place` of the validation."""
    return inner_path(name, (info.context or {}).get("place", "a record"))


InnerPath = Annotated[str, AfterValidator(_validate)]
OptionalInnerPath = Annotated[str, AfterValidator(lambda name, info: name and _validate(name, info))]
"""The same, or empty for the folder itself."""
