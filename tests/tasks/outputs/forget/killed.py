"""Removals of pages that are killed at a given change of a file, as orders of `tests.tasks.forked_orders`.

The instants follow Python's audit events, so that no code under test is replaced: before each file is opened for
writing, renamed or removed, before each folder is made or removed, and before each fsync, where a draft is whole; once
more there with the draft cut in half, as a kill amid its writing leaves it.
"""

import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from gpt2train.store.folder import Folder
from gpt2train.store.output import check_no_removal
from tasks.outputs.forget.command import forget
from tests.tasks.outputs.forget.corpus import run_flow

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


class Instants:
    """Counter of the instants at which files change.

    Args:
        last: number of the instant at which the process is killed; -1: none.
        places: folders whose files count.
    """

    def __init__(self, last: int, *places: str) -> None:
        self.last, self.count, self.places = last, 0, places
        self.kinds: dict[str, int] = {}
        self._fsync = os.fsync
        os.fsync = self.fsync
        sys.addaudithook(self.watch)

    def pass_one(self, kind: str, torn: int | None = None) -> None:
        """Count an instant; on the last one, cut the file of a descriptor in half if one is given, and die."""
        if self.count == self.last:
            if torn is not None:
                os.truncate(f"/proc/self/fd/{torn}", os.fstat(torn).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES:
            # Relative names are those of a folder that is removed with all in it.
            path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else ""
            if path.startswith(self.places) or not path.startswith("/"):
                self.pass_one(event)
        elif event == "open" and isinstance(arguments[0], str | bytes) and arguments[2]:
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if writes and os.fsdecode(arguments[0]).startswith(self.places):
                self.pass_one("open")

    def fsync(self, descriptor: Any) -> None:
        self.pass_one("fsync")
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self.pass_one("torn", descriptor)
        self._fsync(descriptor)


class StoreInstants(Instants):
    """Counter of the instants at which objects of a store change; a removal of many is killed in its middle too."""

    def __init__(self, last: int) -> None:
        self.last, self.count, self.kinds = last, 0, {}
        upload, write, remove = Folder._upload, Folder.write_bytes, Folder.remove

        def uploading(folder: Folder, draft: Path, name: str) -> None:
            self.pass_one("upload")
            upload(folder, draft, name)

        def writing(folder: Folder, name: str, data: bytes) -> None:
            self.pass_one("write")
            write(folder, name, data)

        def removing(folder: Folder, *names: str) -> None:
            self.pass_one("remove")
            half = len(names) // 2
            if half:
                remove(folder, *names[:half])
                self.pass_one("half")
            remove(folder, *names[half:])

        Folder._upload, Folder.write_bytes, Folder.remove = uploading, writing, removing  # type: ignore[method-assign]


def serve(order: dict[str, Any]) -> dict[str, Any]:
    """Do what an order says: remove pages, or run the data recipe as the flow begins it."""
    root = Folder(order["output"])
    if "settings" in order:
        check_no_removal(root)
        return {"skipped": sorted(run_flow(order["output"], order["settings"]))}
    last = order.get("last", -1)
    instants = StoreInstants(last) if "store" in order else Instants(last, root.path())
    options = {"delete_checkpoints": True} if order.get("delete") else {}
    forget(tuple(order["targets"]), output=order["output"], yes=True, **options)
    return {"instants": instants.count, "kinds": instants.kinds}
