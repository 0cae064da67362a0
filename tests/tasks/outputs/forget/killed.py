"""A process that removes pages in forked children, and kills one at a given change of a file.

The instants follow Python's audit events, so that no code under test is replaced: before each file is opened for
writing, renamed or removed, before each folder is made or removed, and before each fsync, where a draft is whole; once
more there with the draft cut in half, as a kill amid its writing leaves it.
"""

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
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
        """Take an audit event of the interpreter."""
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
        """Flush a file or folder."""
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
    with contextlib.redirect_stdout(io.StringIO()):
        options = {"delete_checkpoints": True} if order.get("delete") else {}
        forget(tuple(order["targets"]), output=order["output"], yes=True, **options)
    return {"instants": instants.count, "kinds": instants.kinds}


@contextlib.contextmanager
def server_of_orders() -> Iterator[Callable[..., dict[str, Any]]]:
    """Start the process; yield a function that sends it an order and returns the answer."""
    command = [sys.executable, "-c", "from tests.tasks.outputs.forget.killed import main; main()"]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:

        def order(**more: Any) -> dict[str, Any]:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(more) + "\n")
            process.stdin.flush()
            found: dict[str, Any] = json.loads(process.stdout.readline())
            return found

        yield order
        assert process.stdin
        process.stdin.close()


def main() -> None:
    """Fork for each order; answer with the exit status, negative for a signal, and what the order returned."""
    for line in sys.stdin:
        order = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.write(write, json.dumps(serve(order)).encode())
                status = 0
            except BaseException as error:  # noqa: BLE001 - the child must not continue as the server
                os.write(write, json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode())
            finally:
                os._exit(status)
        os.close(write)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"status": status, **json.loads(os.read(read, 2**16) or b"{}")}), flush=True)
        os.close(read)
