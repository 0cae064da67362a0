"""Errors of one line for an output that was removed or made read-only while a run worked in it."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.store.folder import TEMPORARY, Folder

DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def translate_lost_files(root: Folder | None) -> Iterator[None]:
    """Turn errors on files of an output that were removed or made read-only during the run into errors of one line.

    Errors on other files, such as those of the user, leave the block unchanged, as do all if `root` is None.

    Raises:
        UserError: A part of the output is missing, or cannot be read or written any more.
    """
    try:
        yield
    except OSError as error:
        if root is None or (lost := lost_files_error(root, error)) is None:
            raise
        raise lost from error


def lost_files_error(root: Folder, error: OSError) -> UserError | None:
    """Return the error of one line for an output that was removed or made read-only; None for any other error."""
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    if not is_missing and error.errno not in DENIED:
        return None
    if not root.is_local:
        named = is_missing and root.path() in str(error)  # s3fs and gcsfs give the path without the protocol
        return _missing(f"an object of {root.url}") if named else None
    place = _place_in(Path(root.path()), error)
    if place is None:
        return None
    if not is_missing:
        return UserError(f"cannot use {place}: {error.strerror}; give it back its permissions and run again")
    while place != Path(root.path()) and not place.parent.exists():
        place = place.parent
    return _missing(str(place))


def _missing(what: str) -> UserError:
    return UserError(f"{what} was removed during the run; run again, which makes what is missing once more")


def _place_in(root: Path, error: OSError) -> Path | None:
    """Return the path below a folder that an error names; for a draft that of its folder."""
    named = [str(name) for name in (error.filename, error.filename2) if name]
    named += re.findall("'([^']+)'", str(error))  # pyarrow's errors have the path in their text alone
    for name in named:
        path = Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links
        if path.is_relative_to(root):
            return path.parent if path.name.startswith(TEMPORARY) and path != root else path
    return None
