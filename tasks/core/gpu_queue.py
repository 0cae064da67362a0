"""Queue for this machine's GPUs: at most `launch.max_jobs_per_gpu` training jobs per GPU (default 1).

A slot is a locked file per GPU, in a folder that all users of the machine share. The kernel releases the lock when the
flow and its job have ended, so that a killed run blocks nobody. Jobs on different GPUs do not wait for each other; of
two overlapping sets of GPUs one waits. A machine without a GPU has one device: its cores. The file names the holder and
its lease on a Prefect server, so that the next holder can release the lease of a killed run.
"""

import contextlib
import errno
import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpt2train.errors import RunError

try:
    import fcntl
except ImportError:  # Windows, where torchrun does not train either
    fcntl = None  # type: ignore[assignment]

FOLDER_VARIABLE = "GPT2TRAIN_GPU_QUEUE"  # environment variable that replaces the machine's default folder
POLL_SECONDS = 1.0  # mean interval between two attempts to lock
MAX_HOLDER_CHARS = 300  # shown of a holder's description: any user of the machine can write it
MAX_NOTE_BYTES = 4 * MAX_HOLDER_CHARS


@contextlib.contextmanager
def gpu_slot(
    devices: Sequence[str], max_jobs: int, who: str, waiting: Callable[[str], None], folder: Path | None = None
) -> Iterator[None]:
    """Wait for one of the `max_jobs` slots of each device, and hold these slots.

    Args:
        devices: Names of the devices, as returned by `tasks.train.launch.launchers.devices_of`.
        max_jobs: Slots per device.
        who: Description of this job for those that wait for it; one line.
        waiting: Called with a message before the wait begins, and again whenever the reason changes.
        folder: Folder of the lock files; default: `queue_folder()`.

    Raises:
        RunError: The folder of the lock files cannot be used.
    """
    if not devices or fcntl is None:
        yield
        return
    folder = folder or queue_folder()
    reported = ""
    with contextlib.ExitStack() as held:
        while True:
            files = _lock_all(held, folder, devices, max_jobs)
            if not isinstance(files, str):
                break
            if files != reported:
                reported = files
                waiting(reported)
            time.sleep(POLL_SECONDS * random.uniform(0.5, 1.5))  # jitter, so that two jobs do not collide for ever
        for file in files:
            held.callback(_write_note, file, None)
            _write_note(file, {"who": who, "process": os.getpid()})
        yield


def queue_folder() -> Path:
    """Return the folder that all users of this machine share; create it with mode 1777 if it is missing.

    Any user can create it first, under a predictable name. Therefore a symbolic link is not followed, and an existing
    folder keeps its mode.

    Raises:
        RunError: The folder cannot be created, or users cannot share it safely.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / "gpt2train-gpu-queue")
    created = False
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            created = True
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if created and found.st_uid == os.geteuid():
                os.fchmod(descriptor, 0o1777)
        finally:
            os.close(descriptor)
    except OSError as error:
        link = " (it is a link)" if folder.is_symlink() else ""
        remedy = f"set {FOLDER_VARIABLE} to another folder"
        raise RunError(f"cannot use {folder}{link}, the folder of the GPU queue: {error.strerror}; {remedy}") from error
    if not created and found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX:
        remedy = f"chmod +t {folder}, or set {FOLDER_VARIABLE} to another folder"
        raise RunError(f"in {folder}, the folder of the GPU queue, every user may remove the files of others; {remedy}")
    return folder


def _lock_all(
    held: contextlib.ExitStack, folder: Path, devices: Sequence[str], max_jobs: int
) -> "tuple[int, ...] | str":
    """Lock a slot on every device or on none; return the open files, or the reason to wait."""
    files = []
    with contextlib.ExitStack() as taken:
        for device in sorted(devices):  # in one order, so that no two jobs block each other for long
            opened = [_open(path) for path in _files(folder, device, max_jobs)]
            free = next((number for number, descriptor in enumerate(opened) if _lock(descriptor)), None)
            for number, descriptor in enumerate(opened):
                if number != free:
                    os.close(descriptor)
            if free is None:
                return f"{device} is taken by {' and '.join(_holders(folder, device, max_jobs)) or 'another training'}"
            taken.callback(os.close, opened[free])
            os.set_inheritable(opened[free], True)  # the job inherits the lock: it may outlive a killed flow
            files.append(opened[free])
        held.push(taken.pop_all())
    return tuple(files)


def _files(folder: Path, device: str, max_jobs: int) -> list[Path]:
    return [folder / f"{device.replace(' ', '-').lower()}.{number}" for number in range(max_jobs)]


def _open(path: Path) -> int:
    """Open a lock file that several users lock and write notes into.

    Any user can put something else under this name: a link to one of our files, symbolic or hard, is rejected.

    Raises:
        RunError: The file cannot be opened, or is not a regular file with one link.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, flags)
                break
            with contextlib.suppress(FileExistsError):  # another process created it just now
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # regardless of the umask
                break
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file, but a link or a pipe")
        return descriptor
    except OSError as error:
        remedy = f"set {FOLDER_VARIABLE} to another folder"
        raise RunError(f"cannot open {path}, a lock file of the GPU queue: {error.strerror}; {remedy}") from error


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write_note(descriptor: int, note: dict[str, Any] | None) -> None:
    """Replace the note in a lock file; None erases it."""
    with contextlib.suppress(OSError):  # on a full disk, waiting jobs cannot name the holder
        os.ftruncate(descriptor, 0)
        if note is not None:
            os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _holders(folder: Path, device: str, max_jobs: int) -> list[str]:
    """Return the descriptions of a device's holders, from their notes."""
    found = []
    for path in _files(folder, device, max_jobs):
        with contextlib.suppress(RunError, OSError, KeyError, TypeError, ValueError):  # no note, or no readable one
            descriptor = _open(path)
            try:
                note = json.loads(os.pread(descriptor, MAX_NOTE_BYTES, 0))
            finally:
                os.close(descriptor)
            who = "".join(char if char.isprintable() else " " for char in str(note["who"]))[:MAX_HOLDER_CHARS]
            found.append(f"{who} (process {int(note['process'])})")
    return found
