"""Atomic writing of files and folders by temporary name, fsync and rename, and other file helpers."""

import contextlib
import errno
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from gpt2train.errors import RunError, UserError
from gpt2train.store.run_folder import FOLDER

log = logging.getLogger("gpt2train")

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
DEFAULT_REMEDY = "give another --output"  # of a write that failed
ADAPTER = "adapter_config.json"  # of PEFT
OTHER_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin")  # of nanoGPT, LitGPT, Lightning, llm.c
PROBE_BYTES = 1 << 20  # that a disk has to take; one that refuses them counts as full


def write_error(place: str | Path, error: OSError, remedy: str = DEFAULT_REMEDY) -> UserError | RunError:
    """Convert a failed write to an error that names the path, the reason and the remedy."""
    if (full := no_space(error)) is not None:
        return RunError(f"{full.reason} while writing {place}: {full.remedy}, or {remedy}; run again to continue")
    if error.errno == errno.ENOENT and (missing := missing_folder(Path(place))) is not None:
        return UserError(f"cannot write {place}: the folder {missing} is missing; put it back, or run again")
    return UserError(f"cannot write {place}: {error.strerror or error}; {remedy}")


class NoSpace(NamedTuple):
    """Reason and remedy of a write that found no space."""

    reason: str
    remedy: str


def no_space(error: OSError) -> NoSpace | None:
    """Return why a write found no space; None if it failed for another reason."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace("no space left", "free some")
    if error.errno != errno.EFBIG:
        return None
    limit = error.strerror
    with contextlib.suppress(ImportError):
        import resource  # missing on Windows

        soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        limit = error.strerror if soft == resource.RLIM_INFINITY else f"{format_bytes(soft)}, ulimit -f"
    return NoSpace(f"the size limit of a file ({limit}) is reached", "raise it")


def missing_folder(path: Path) -> Path | None:
    """Return the first folder on the way to a path that does not exist, such as one that was removed during a run."""
    return next((folder for folder in reversed(path.parents) if not folder.exists()), None)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise a UserError with what a path is, and the remedy, unless it is a folder."""
    folder = Path(path)
    if folder.is_dir():
        return
    if folder.is_file():
        if folder.suffix.lower() in ARCHIVES:
            remedy = "unpack it and give the folder that it contains"
            raise UserError(f"{path} is an archive, but a folder is needed; {remedy}")
        raise UserError(f"{path} is a file, but a folder is needed; give the folder that contains it")
    if str(path) == folder.name or (HUB_NAME.fullmatch(str(path)) and not folder.parent.is_dir()):
        raise UserError(
            f"there is no folder {path}; check the path. A model of the hub has the address hf://ORG/NAME; what takes "
            f"folders alone is downloaded first (hf download {path} --local-dir FOLDER)"
        )
    raise UserError(f"there is no folder {path}; check the path")


def check_new(folder: Path) -> None:
    """Raise a UserError unless a folder can be written: it does not exist, or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists; give another folder")


def adapter_alone(path: str | os.PathLike[str]) -> str:
    """Message for a folder of weights that only change those of another model."""
    return f"{path} has a LoRA adapter ({ADAPTER}) alone; merge it into its base model by peft's merge_and_unload"


def check_model_folder(path: str | os.PathLike[str]) -> None:
    """Raise a UserError unless a path is a folder with the `config.json` of a model."""
    check_folder(path)
    if not (Path(path) / "config.json").is_file():
        if (Path(path) / ADAPTER).is_file():
            raise UserError(adapter_alone(path))
        remedy = "give a folder with config.json and model.safetensors: gpt2train merge RUN --output MODEL"
        if (Path(path) / FOLDER).is_dir():
            remedy = f"create one of this run: gpt2train merge {quote(str(path))} --output {quote(f'{path}/model')}"
        elif other := next((file.name for file in sorted(Path(path).iterdir()) if file.suffix in OTHER_WEIGHTS), None):
            remedy = f"export {other} as a Hugging Face folder by the program that wrote it"
        raise UserError(f"{path} is not a model folder (no config.json); {remedy}")


def probe_space(folder: Path, offset: int = 0) -> NoSpace | None:
    """Return why a folder takes no `PROBE_BYTES` at an offset of a file; they are written: no quota is reported."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.seek(offset)
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return no_space(error)
    return None


def private_folder() -> Path:
    """Return the user's private folder for temporary files, created with mode 0700 if missing.

    Its name is predictable, so that another user could create it first: a link, a folder of another user, and a folder
    writable by others are refused.

    Raises:
        UserError: the folder cannot be created, or is refused.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else 0  # Windows has a folder of temporary files for each user
    folder = Path(tempfile.gettempdir()) / f"gpt2train-{user}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}; set TMPDIR to a writable folder") from error
    is_own = os.name == "nt" or (status.st_uid == user and not status.st_mode & 0o022)
    if not (stat.S_ISDIR(status.st_mode) and is_own):
        remedy = "remove it, or set TMPDIR to a folder of your own"
        raise UserError(f"{folder} is a link, belongs to another user, or is writable by others; {remedy}")
    return folder


def format_bytes(size: int) -> str:
    """Format a number of bytes with a unit."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def read_json_lines(
    data: bytes, is_row: Callable[[dict[str, Any]], bool] = lambda row: True
) -> tuple[list[dict[str, Any]], list[int]]:
    """Parse a file with one JSON object per line; a last line without a line feed is incomplete and ignored.

    Of zeros, as a power failure leaves the end of a file, that line is unreadable instead: whole lines are lost there.

    Returns the objects for which `is_row` holds, and the numbers of all other lines, counted from 1.
    """
    rows: list[dict[str, Any]] = []
    unreadable: list[int] = []
    *lines, last = data.split(b"\n")
    for number, line in enumerate([*lines, last] if b"\0" in last else lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and is_row(row):
            rows.append(row)
        else:
            unreadable.append(number)
    return rows, unreadable


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and fsync the entry of each.

    Without the fsync, a power failure can remove a folder with all its files, even if the files were synced.

    Raises:
        OSError: the folder cannot be created, or the path is a file.
    """
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for new in reversed(missing):
        try:
            new.mkdir()
        except FileExistsError:
            if not new.is_dir():
                raise
        else:
            fsync(new.parent)


@contextlib.contextmanager
def atomic_file(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write; at the end of the block it is renamed to `path`, unless there was an error.

    `draft` is that path, in the same folder; by default one that no other process uses.

    Raises:
        OSError: the path is not writable, or the disk is full.
    """
    draft = draft or path.parent / f".tmp-{secrets.token_hex(6)}"
    try:
        yield draft
        fsync(draft)
        draft.replace(path)
        fsync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file atomically, and its folder if it is missing.

    Raises:
        RunError: the disk is full.
        UserError: the path is not writable.
    """
    try:
        make_folder(path.parent)
        with atomic_file(path) as draft:
            draft.write_bytes(data)
    except OSError as error:
        raise write_error(path, error) from error


def set_aside(path: Path) -> Path:
    """Rename a file or folder to the first free name of `NAME.old`, `NAME.old-2`, … and return that path."""
    names = (f"{path.name}.old{number and f'-{number}'}" for number in itertools.chain([""], itertools.count(2)))
    return path.replace(next(free for free in map(path.with_name, names) if not free.exists()))


def make_way(*paths: Path) -> None:
    """Set aside what stands in the way of a run's files and is none that can be read, such as a folder, and warn."""
    for path in paths:
        try:
            path.open("rb").close()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("warning: cannot read %s: %s; it is kept in %s", path, error.strerror, set_aside(path))


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; at the end of the block it is renamed to `path`, unless there was an error.

    An older folder at `path` is renamed before and removed after that, so that a kill loses neither: `path` is
    complete, or missing with the older folder next to it as `.old-…`.

    Raises:
        RunError: the disk is full.
        UserError: the path is not writable.
        OSError: the block failed to read another file.
    """
    token = secrets.token_hex(6)
    draft, old = path.parent / f".tmp-{token}", path.parent / f".old-{token}"
    try:
        make_folder(path.parent)
        draft.mkdir()
        yield draft
        for file in sorted(draft.rglob("*")):
            fsync(file)
        fsync(draft)
        if path.exists():
            path.rename(old)
        draft.rename(path)
        fsync(path.parent)
    except OSError as error:
        at = Path(error.filename) if error.filename else draft
        if draft not in (at, *at.parents) and at not in (old, path, *path.parents):  # of a file that the block reads
            raise
        raise write_error(path, error, "give another folder") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def fsync(path: Path) -> None:
    """Flush a file's bytes, or a folder's entries, to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folder, and flushes no file that is open for reading alone
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
