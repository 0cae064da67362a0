"""`data index` and `compare-data`, killed at instants spread over the run: the next run gives equal bytes."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from gpt2train.data.indexed import write_index
from tests.gpt2train.compare.test_compare import small_comparison
from tests.processes import command_of, wait_until_ended

pytestmark = pytest.mark.timeout(1800)
CLOCK = ("seconds", "started", "ended")  # of a result, that a repeated training measures anew
INDEX = """
import sys
from pathlib import Path
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.suffix_index import build_index
if __name__ == "__main__":
    build_index(open_tokens(Path(sys.argv[1])), Path(sys.argv[2]), block_tokens=150_000, workers=2)
"""


def contents(folder: Path) -> dict[str, str]:
    """Hash of each file, of results without their times."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".json":
            values = json.loads(data)
            data = json.dumps({key: values[key] for key in sorted(values) if key not in CLOCK}).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def run(command: list[str]) -> float:
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started


def check_kills(command: list[str], output: Path, instants: int) -> None:
    """Kill the command at instants spread over its run, each time into an empty output, and run it again."""
    seconds = run(command)
    whole = contents(output)
    shutil.rmtree(output)
    run(command)
    assert contents(output) == whole
    for number in range(instants):
        shutil.rmtree(output, ignore_errors=True)
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, start_new_session=True, **streams)
        time.sleep(seconds * (number + 0.5) / instants)
        group = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until_ended(group)
        assert not [one for one in psutil.process_iter() if str(output) in command_of(one)]
        run(command)
        assert contents(output) == whole


@pytest.mark.slow
def test_an_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "build.py").write_text(INDEX)
    lengths = [500] * 2400
    rng.integers(0, 3000, sum(lengths)).astype("<u2").tofile(tmp_path / "t.bin")
    write_index(tmp_path / "t.idx", lengths, "<u2")
    output = tmp_path / "index"
    check_kills([sys.executable, str(tmp_path / "build.py"), str(tmp_path / "t"), str(output)], output, 12)


@pytest.mark.exhaustive
def test_a_comparison(tmp_path: Path) -> None:
    check_kills(small_comparison(tmp_path), tmp_path / "out", 5)
