"""Whose turn it is on a GPU: as many trainings at a time as the user allows, one where nothing is said.

A turn is a locked file for each GPU, in a folder that all users of the machine share. The kernel lets go of it with
the process and the job that it started, so that a killed run blocks nobody. Trainings on other GPUs do not wait; of
two sets that overlap one waits. On a machine without a GPU there is one thing to take turns at: its cores. The file
says who holds it, and under which lease of a server: what a killed run could not give back, the next one does.
"""

import contextlib
import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.config import TrainSettings
from gpt2train.errors import RunError
from gpt2train.plan.devices import find_gpus

if TYPE_CHECKING:
    from tasks.launch.settings import LaunchSettings

try:
    import fcntl
except ImportError:  # Windows, where torchrun does not train either
    fcntl = None  # type: ignore[assignment]

FOLDER = "GPT2TRAIN_TURNS"  # in the environment: another folder than the machine's
LOOK_SECONDS = 1.0  # between two looks whether it is our turn
WORDS = 300  # characters of what a file says of its holder: anyone on the machine can write them
NOTE_BYTES = 4 * WORDS

Waiting = Callable[[str], None]


@dataclass(frozen=True)
class Turn:
    """A turn that is held.

    Attributes:
        others: how many others are at the fullest of the places.
        left: leases that those who were killed here before could not give back.
    """

    others: int
    left: frozenset[str]
    _who: str = ""
    _files: tuple[int, ...] = ()

    def note(self, lease: str) -> None:
        """Write down the lease under which a server counts this turn."""
        for file in self._files:
            _write(file, self._who, lease)


def places_of(train: TrainSettings, launch: "LaunchSettings") -> tuple[str, ...]:
    """What a training of these settings takes for itself on this machine: `GPU 0`, `GPU 1`, … or `cores`.

    Nothing where another program decides who runs where (Slurm), or the processes run on other machines.
    """
    if launch.launcher != "torchrun":
        return ()
    gpus = find_gpus() if train.device != "cpu" else ()
    enough = len(gpus) >= launch.processes  # or the engine takes none of them
    return tuple(f"GPU {gpu.index}" for gpu in gpus[: launch.processes]) if enough else ("cores",)


@contextlib.contextmanager
def turn(places: Sequence[str], share: int, who: str, waiting: Waiting, folder: Path | None = None) -> Iterator[Turn]:
    """Wait until there is room at each of these places, and hold it: yields the turn.

    Args:
        places: as `places_of` names them.
        share: how many may be at one place.
        who: what those who wait are told; one line.
        waiting: told once, before the wait begins, what it is for, and again when another is waited for.

    Raises:
        RunError: the folder of the turns cannot be used.
    """
    if not places or fcntl is None:
        yield Turn(0, frozenset())
        return
    folder = folder or turns_folder()
    told = ""
    with contextlib.ExitStack() as held:
        while True:
            files = _take_all(held, folder, places, share)
            if not isinstance(files, str):
                break
            if files != told:
                told = files
                waiting(told)
            time.sleep(LOOK_SECONDS * random.uniform(0.5, 1.5))  # two that look at once must not do so for ever
        left = frozenset(str(lease) for file in files if (lease := _read(file).get("lease")))
        for file in files:
            held.callback(_erase, file)
            _write(file, who)
        yield Turn(max(_others(folder, place, share) for place in places), left, who, files)


def turns_folder() -> Path:
    """The folder that all users of this machine share; made when missing.

    Raises:
        RunError: it cannot be made.
    """
    folder = Path(os.environ.get(FOLDER) or Path(tempfile.gettempdir()) / "gpt2train-turns")
    try:
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # of another user, who made it so already
            folder.chmod(0o1777)
    except OSError as error:
        raise RunError(
            f"cannot make {folder}, where trainings on one machine wait for each other: {error.strerror}; "
            f"set {FOLDER} to another folder"
        ) from error
    return folder


def _take_all(held: contextlib.ExitStack, folder: Path, places: Sequence[str], share: int) -> "tuple[int, ...] | str":
    """Take a turn at every place, or at none; the files, or what is in the way."""
    files = []
    with contextlib.ExitStack() as taken:
        for place in sorted(places):  # in one order, so that two never hold what the other one needs for long
            opened = [_open(path) for path in _files(folder, place, share)]
            mine = next((number for number, one in enumerate(opened) if _lock(one)), None)
            for number, one in enumerate(opened):
                if number != mine:
                    os.close(one)
            if mine is None:
                return f"{place} is taken by {' and '.join(_holders(folder, place, share)) or 'another training'}"
            taken.callback(os.close, opened[mine])
            os.set_inheritable(opened[mine], True)  # by the job: it may outlive a flow that is killed
            files.append(opened[mine])
        held.push(taken.pop_all())
    return tuple(files)


def _files(folder: Path, place: str, share: int) -> list[Path]:
    return [folder / f"{place.replace(' ', '-').lower()}.{number}" for number in range(share)]


def _open(path: Path) -> int:
    """Open a file that several users lock. Without O_CREAT first: the kernel refuses that on files of others in a
    folder that all may write to (fs.protected_regular)."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
            with contextlib.suppress(PermissionError):
                os.fchmod(descriptor, 0o666)  # whatever the umask says
            return descriptor
    except OSError as error:
        raise RunError(
            f"cannot open {path}, by which trainings on one machine wait for each other: {error.strerror}; "
            f"set {FOLDER} to another folder"
        ) from error


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write(descriptor: int, who: str, lease: str | None = None) -> None:
    with contextlib.suppress(OSError):  # a full disk: those who wait are told less
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"who": who, "process": os.getpid(), "lease": lease}).encode(), 0)


def _read(descriptor: int) -> dict[str, Any]:
    """What the last holder wrote and did not erase; nothing where that makes no sense."""
    with contextlib.suppress(OSError, ValueError):
        note = json.loads(os.pread(descriptor, NOTE_BYTES, 0))
        return note if isinstance(note, dict) else {}
    return {}


def _erase(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)


def _holders(folder: Path, place: str, share: int) -> list[str]:
    """What the holders of a place say of themselves."""
    said = []
    for path in _files(folder, place, share):
        with contextlib.suppress(OSError, ValueError):
            note: Any = json.loads(path.read_bytes()[:NOTE_BYTES])
            words = "".join(sign if sign.isprintable() else " " for sign in str(note["who"]))[:WORDS]
            said.append(f"{words} (process {int(note['process'])})")
    return said


def _others(folder: Path, place: str, share: int) -> int:
    """How many others are at a place where we are."""
    count = -1
    for path in _files(folder, place, share):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(path.lstat().st_mode):
                descriptor = _open(path)
                count += not _lock(descriptor)
                os.close(descriptor)
    return max(0, count)
