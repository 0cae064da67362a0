"""A process that repeats a download in forked children and kills each at an instant of its work.

It answers each order, a line of JSON on standard input, with the child's exit status, negative for a signal.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from gpt2train.store.manifest import Folder, need_manifest
from tasks.download.step import download
from tests.tasks.corpus import Inline
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.kill_points import kill_at


@contextlib.contextmanager
def killed_downloads() -> Iterator[Callable[..., int]]:
    """Start the process; yield a function that sends it an order and returns the child's exit status."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.download.killed_downloads"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin and process.stdout

        def order(root: Folder, address: str, again: Literal["retry_failed", "refresh"], **more: Any) -> int:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps({"root": root.url, "address": address, "again": again, **more}) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield order
        process.stdin.close()


def kill_at_removal(number: int) -> None:
    """Kill this process before it removes the file of this number."""
    removed = iter(range(10**6))
    remove = Folder.remove

    def watched(self: Folder, *names: str) -> None:
        for name in names:
            if next(removed) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            remove(self, name)

    Folder.remove = watched  # type: ignore[method-assign]


def repeat(order: dict[str, Any]) -> None:
    """Fetch the failed URLs again, or refresh the pages."""
    root = Folder(order["root"])
    if "record" in order:
        _record(Path(order["record"]))
    if "removal" in order:
        kill_at_removal(order["removal"])
    if "write" in order:
        kill_at(root, "pages", order["write"], order["instant"])
    urls = need_manifest(root / "urls")
    download(root, urls, make_settings(), Inline(1), {"*.test": order["address"]}, **{order["again"]: True})


def _record(path: Path) -> None:
    """Count the writes and removals of this process."""
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


def main() -> None:
    """Fork for each order."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                repeat(json.loads(line))
                status = 0
            except BaseException:  # noqa: BLE001 - the child must not continue as the parent
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
