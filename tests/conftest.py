"""What the tests share: where the real data lies, and how they are divided among pytest's workers."""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.trained_run import TrainedRun

ROOT = Path(__file__).parent.parent

# Set before torch is imported. Its threads spin while they wait: on two busy cores the tests of the evaluation took
# 86 s with two threads and 14 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ranks that the tests start run modules of the tests: pytest finds those by its own path, a child process does not.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# Trainings on one machine wait for each other; those of two test workers need not.
TURNS = tempfile.mkdtemp(prefix="gpt2train-test-turns-")
os.environ["GPT2TRAIN_TURNS"] = TURNS
atexit.register(shutil.rmtree, TURNS, ignore_errors=True)

# Every file that a step writes is forced to the disk, and so is each record of Prefect's database. A disk that takes
# 20 ms for that made the kill matrix take 8 minutes; in memory it takes one.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# A time limit for one example would be one for the machine, which has other work as well.
settings.register_profile("here", deadline=None)
settings.load_profile("here")

# What takes longest begins first: at the end no worker waits for the other.
LONGEST = ("the main job", "tests/gpt2train/test_train", "tests/tasks/test_kills", "tests/gpt2train/", "tests/flows/")


SLOW_SECONDS = 900.0  # until a slow test counts as hung: some drive eight processes on two cores


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay in one worker, those that share a costly fixture, and put the longest first."""

    def long(item: pytest.Item) -> bool:
        return any(item.get_closest_marker(name) for name in ("slow", "exhaustive"))

    def group(item: pytest.Item) -> str:
        file = item.nodeid.partition("::")[0]
        if "finished" in getattr(item, "fixturenames", ()) and not long(item):
            return "the main job"
        return (
            item.nodeid if long(item) and file == "tests/tasks/test_kills.py" else file
        )  # nine minutes for one worker

    def turn(item: pytest.Item) -> int:
        if item.get_closest_marker("alone"):
            return -1
        return next((n for n, start in enumerate(LONGEST) if group(item).startswith(start)), len(LONGEST))

    for item in items:
        if long(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=turn)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timeout: to wait for one's turn is no hang
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run no test beside one that is marked `alone`, in whatever worker."""
    with (ROOT / "pyproject.toml").open() as door, Path(__file__).open() as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for an empty room lets nobody else in
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a forked process may hold the file open


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real test files; the test is skipped with a reason where they are absent."""
    folder = Path(os.environ.get("GPT2TRAIN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set GPT2TRAIN_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> "TrainedRun":
    """A small run that was really trained, once for all tests that read a run; they add files, they change none."""
    from tests.trained_run import train_small_run  # loads torch, which most tests do not need

    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return train_small_run(tmp_path_factory.mktemp("trained"), text)
