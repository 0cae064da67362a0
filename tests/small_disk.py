"""A small file system, and a process that fills it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILLER = "filled-by-another"


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """Mount a file system of this size at a folder; yields False where mounting is not allowed."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    made = mount is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left: int = 0) -> None:
    with (disk / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while (take := _free(disk) - left) > 0:
            file.write(bytes(min(take, 1 << 16)))


def free(disk: Path) -> None:
    (disk / FILLER).unlink()


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
