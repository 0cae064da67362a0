"""A process that removes pages in forked children, and kills one at a given write or removal of a file."""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.core.storage import Folder
from tasks.forget.command import forget


class Instants:
    """Counter of the instants at which files change: before and after each rename, before each removal.

    Args:
        last: number of the instant at which the process is killed; -1: none.
    """

    def __init__(self, last: int) -> None:
        self.last, self.count = last, 0
        self._replace, self._remove, self._rmtree = Path.replace, Folder.remove, shutil.rmtree
        # Functions, not bound methods: a class hands its instance on to functions alone.
        Path.replace = lambda draft, target: self.replace(draft, target)  # type: ignore[method-assign, assignment]
        Folder.remove = lambda folder, *names: self.remove(folder, *names)  # type: ignore[method-assign, assignment]
        shutil.rmtree = self.rmtree  # type: ignore[assignment]

    def pass_one(self) -> None:
        """Count an instant."""
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def replace(self, draft: Path, target: Any) -> Path:
        """Rename a draft."""
        self.pass_one()
        path = self._replace(draft, target)
        self.pass_one()
        return path

    def remove(self, folder: Folder, *names: str) -> None:
        """Remove files one by one."""
        for name in names:
            self.pass_one()
            self._remove(folder, name)

    def rmtree(self, path: Any, *args: Any, **options: Any) -> None:
        """Remove a folder."""
        self.pass_one()
        self._rmtree(path, *args, **options)


def main() -> None:
    """Fork for each order; answer with the exit status, negative for a signal, and the number of instants."""
    for line in sys.stdin:
        order = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                instants = Instants(order.get("last", -1))
                with contextlib.redirect_stdout(io.StringIO()):
                    forget(tuple(order["targets"]), output=order["output"], yes=True)
                os.write(write, str(instants.count).encode())
                status = 0
            except BaseException:  # noqa: BLE001 - the child must not continue as the server
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"status": status, "instants": int(os.read(read, 100) or 0)}), flush=True)
        os.close(read)
