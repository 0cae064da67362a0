"""A process that retries a download in forked children and kills each at an instant of its commit.

It answers each order, a line of JSON on standard input, with the child's exit status, negative for a signal.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.core.manifest import need_manifest
from tasks.core.storage import Folder
from tasks.download.step import download
from tests.tasks.corpus import Inline
from tests.tasks.download.fetch_helpers import make_settings
from tests.tasks.kill_points import kill_at


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


def retry(order: dict[str, Any]) -> None:
    """Fetch the failed URLs again."""
    root = Folder(order["root"])
    if "record" in order:
        _record(Path(order["record"]))
    if "removal" in order:
        kill_at_removal(order["removal"])
    if "write" in order:
        kill_at(root, "pages", order["write"], order["instant"])
    urls = need_manifest(root / "urls")
    download(root, urls, make_settings(), Inline(1), {"*.test": order["address"]}, retry_failed=True)


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
                retry(json.loads(line))
                status = 0
            except BaseException:  # noqa: BLE001 - the child must not continue as the parent
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
