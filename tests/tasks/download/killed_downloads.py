"""Repeated downloads that are killed at an instant of their work, as orders of `tests.tasks.forked_orders`."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from gpt2train.store.manifest import Folder
from tests.tasks.download.fetch_helpers import run_again
from tests.tasks.kill_points import kill_at


def kill_at_removal(number: int) -> None:
    removed = iter(range(10**6))
    remove = Folder.remove

    def watched(self: Folder, *names: str) -> None:
        for name in names:
            if next(removed) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            remove(self, name)

    Folder.remove = watched  # type: ignore[method-assign]


def serve(order: dict[str, Any]) -> None:
    root = Folder(order["root"])
    if "record" in order:
        _record(Path(order["record"]))
    if "removal" in order:
        kill_at_removal(order["removal"])
    if "write" in order:
        kill_at(root, "pages", order["write"], order["instant"])
    run_again(root, order["address"], **{order["again"]: True})


def _record(path: Path) -> None:
    replace, remove = Path.replace, Folder.remove
    counts = {"writes": 0, "removals": 0}

    def note(kind: str, number: int) -> None:
        counts[kind] += number
        path.write_text(json.dumps(counts))

    def replaced(self: Path, target: Any) -> Path:
        note("writes", "/pages/" in str(target))
        return replace(self, target)

    def removed(self: Folder, *names: str) -> None:
        note("removals", len(names))
        remove(self, *names)

    Path.replace, Folder.remove = replaced, removed  # type: ignore[method-assign, assignment]
