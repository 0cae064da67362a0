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
    """A disk of this size at a folder; False where we may not mount one."""
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
    """Take a disk's space, but for some bytes."""
    with (disk / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while (take := _free(disk) - left) > 0:
            file.write(bytes(min(take, 1 << 16)))


def free(disk: Path) -> None:
    """Give back what was taken."""
    (disk / FILLER).unlink()


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
