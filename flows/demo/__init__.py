"""Embedded web site of the demo: real pages over real HTTP, without access to the internet.

Every Python installation contains thousands of pages of English documentation; a server on 127.0.0.1 renders them with
the standard library's pydoc. It runs in a process of its own with a clean environment: its imports cost the flow
nothing, and no page can contain data of the user.
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
# Environment variables that the interpreter may need.
KEPT_VARIABLES = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class DemoSite:
    """Running demo site."""

    url_list: str  # address of the site's URL list
    connect_to: Mapping[str, str]  # host pattern -> `address:port` that serves these hosts, for the download


@contextlib.contextmanager
def demo_site() -> Iterator[DemoSite]:
    """Serve the demo site until the block or this process ends.

    Call it from a thread that lives as long as the site: the kernel ends the site with the thread that started it.

    Raises:
        RunError: the server did not start; the message contains its last line of output.
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
            start_new_session=True,  # Ctrl-C must reach only the flow, which then stops the site
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the demo site did not start: {reason[:300]}")
            address = f"127.0.0.1:{json.loads(line)['port']}"
            yield DemoSite(f"http://{address}/urls.txt", {"*.pydoc.example": address})
        finally:
            process.kill()
            process.communicate()


def _environment(home: str) -> dict[str, str]:
    """Environment of the server: the same on every machine except for the paths of the interpreter."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
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
