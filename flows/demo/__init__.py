"""The embedded web site of the demo: real pages over real HTTP, with nothing fetched from outside.

Every Python installation carries thousands of pages of English documentation; a server on 127.0.0.1 renders them with
the standard library's pydoc. It runs in a process of its own, with an environment of its own: what it imports costs
the flow nothing, and no page can hold anything of the user's.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpt2train.errors import RunError

ROOT = Path(__file__).parents[2]
KEPT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")  # what an interpreter may need


@dataclass(frozen=True)
class DemoSite:
    """A running demo site.

    Attributes:
        url_list: address of the list of its URLs.
        connect_to: host pattern -> `address:port` where these hosts are served, for the download.
    """

    url_list: str
    connect_to: Mapping[str, str]


@contextlib.contextmanager
def demo_site() -> Iterator[DemoSite]:
    """Serve the demo site until the block ends, or this process does.

    Call it from a thread that lives as long as the site: the kernel ends the site with the thread that started it.

    Raises:
        RunError: the server did not start; the message holds the last line that it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="gpt2train-demo-") as home, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "flows.demo", "--parent", str(os.getpid())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(home),
            cwd=home,
            start_new_session=True,  # Ctrl-C is for the flow, which stops the site in its turn
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the demo site did not start: {said[:300]}")
            address = f"127.0.0.1:{json.loads(line)['port']}"
            yield DemoSite(f"http://{address}/urls.txt", {"*.pydoc.example": address})
        finally:
            process.kill()
            process.communicate()


def _environment(home: str) -> dict[str, str]:
    """Nothing of the user's: the same on every machine, but for where the interpreter lies."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": home,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
