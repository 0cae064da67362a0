"""Kills of a process at a given instant of a write. Imports little: workers load it with their first batch."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from gpt2train.store.folder import Folder

# Folders of the data steps, in the order of the recipe.
FOLDERS = (
    *("urls", "pages", "documents", "clean", "evalset", "decontaminated", "dedup", "shuffled", "tokenizer", "tokens"),
    "report",
)
INSTANTS = ("before", "between", "after")


def kill_at(root: Folder, folder: str, number: int, instant: str) -> None:
    """Kill this process at an instant of the write of this number below a folder.

    Args:
        instant: `before` the draft is begun, `between` the draft's last byte and its rename, `after` the rename.
    """
    prefix = (root / folder).path().rstrip("/") + "/"
    begun, renamed = iter(range(10**6)), iter(range(10**6))
    writing, replace = Folder.writing, Path.replace

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watched_writing(self: Folder, name: str) -> Any:
        if self.path(name).startswith(prefix) and next(begun) == number and instant == "before":
            die()
        return writing(self, name)

    def watched_replace(self: Path, target: Any) -> Path:
        ours = str(target).startswith(prefix) and next(renamed) == number
        if ours and instant == "between":
            die()
        path = replace(self, target)
        if ours and instant == "after":
            die()
        return path

    Folder.writing, Path.replace = watched_writing, watched_replace  # type: ignore[method-assign, assignment]


def work_and_die(mark: Path, instant: str, work: Any, folder: Folder, *args: Any) -> Any:
    """Do a batch in a worker; the first worker to create the mark dies at its first write."""
    with contextlib.suppress(FileExistsError):
        mark.open("x").close()
        kill_at(folder, "", 0, instant)
    return work(folder, *args)
