"""Shared fixtures and rules: test data, the `unit` marker, the groups of pytest's workers."""

import atexit
import fcntl
import gc
import logging
import lzma
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.inner_loop import is_unit_file, is_unit_test

if TYPE_CHECKING:
    from tests.trained_run import TrainedRun

ROOT = Path(__file__).parent.parent
OPEN_DATA = ROOT / "tests" / "data"
NO_REAL_DATA = "real data not found at"

# Set before torch is imported. Its threads spin while they wait: on two busy cores the tests of the evaluation took
# 86 s with two threads and 14 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The tests start some hundred processes. Where nothing compiled may be kept, as in many containers, each of them would
# compile what it imports: 1.3 s of 3.6 s for a flow, and half of the time in which the tests are collected.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ranks that the tests start run modules of the tests: pytest finds those by its own path, a child process does not.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# No test asks the real hub, whatever it mistypes: nothing listens here, so a client fails at once.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"

# Trainings on one machine wait for each other; those of two test workers need not.
QUEUE_FOLDER = tempfile.mkdtemp(prefix="gpt2train-test-gpu-queue-")
os.environ["GPT2TRAIN_GPU_QUEUE"] = QUEUE_FOLDER
atexit.register(shutil.rmtree, QUEUE_FOLDER, ignore_errors=True)

# Every file that a step writes is forced to the disk, and so is each record of Prefect's database. A disk that takes
# 20 ms for that made the kill matrix take 8 minutes; in memory it takes one.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# A time limit for one example would depend on the load of the machine. Each run draws other examples, and
# `make exhaustive` many.
settings.register_profile("here", deadline=None, max_examples=50)
settings.register_profile("many", deadline=None, max_examples=400)
settings.load_profile("here")

# Groups of tests in the order in which they start: with a long group at the end one worker would wait for the other.
LONGEST_FIRST = (
    "the main job",
    "tests/gpt2train/test_train",
    "tests/tasks/test_kills",
    "tests/gpt2train/",
    "tests/flows/",
)

MAX_NAME = 50  # characters of a value in the name of a test
SLOW_SECONDS = 900.0  # until a slow test counts as hung: some drive eight processes on two cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a unit test in `pytest -m unit`."""
    is_test = collection_path.name.startswith("test_") and ROOT / "tests" in collection_path.parents
    if config.option.markexpr == "unit" and is_test and not is_unit_file(collection_path):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage in what the collection imports, most of which stays: that took 5 of 14 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free what it holds at its end: libraries report what is left."""
    gc.unfreeze()


def is_long(item: pytest.Item) -> bool:
    """True if a test is marked slow or exhaustive."""
    return any(item.get_closest_marker(name) for name in ("slow", "exhaustive"))


def pytest_runtest_logstart() -> None:
    """Undo what a training or a flow in this process has left in the package's logger, before pytest looks at it.

    Pytest's own handler is also added to a logger that does not propagate: a test that then lets it propagate would
    see each record twice.
    """
    logger = logging.getLogger("gpt2train")
    logger.propagate = True
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, logging.StreamHandler)]
    # absl, which tensorboard imports, closes the file that was `sys.stderr` at its import when any library configures
    # the log anew: the file into which pytest captures. All tests after it fail.
    if absl := sys.modules.get("absl.logging"):
        absl.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its beginning and its length, and gzip data, which hold the time, by their length alone.

    Names that differ between the two processes of pytest-xdist end the run.
    """
    if isinstance(val, bytes) and val.startswith(b"\x1f\x8b"):
        return f"gzip of {len(val)} bytes"
    if isinstance(val, str | bytes) and len(val) > MAX_NAME:
        return f"{val[:MAX_NAME]!r} of {len(val)}"
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave exhaustive tests out of the slow ones, mark the unit tests, and put the tests into groups and their order.

    Tests that share a costly fixture run in one worker, and the longest group starts first.
    """

    def group(item: pytest.Item) -> str:
        file = item.nodeid.partition("::")[0]
        if "finished" in getattr(item, "fixturenames", ()):
            return "the main job"
        if is_long(item) and file == "tests/tasks/test_kills.py":  # nine minutes: too long for one worker
            return item.nodeid
        return file

    def position(item: pytest.Item) -> int:
        if item.get_closest_marker("alone"):
            return -1
        return next((n for n, start in enumerate(LONGEST_FIRST) if group(item).startswith(start)), len(LONGEST_FIRST))

    if config.option.markexpr == "slow":  # an exhaustive test of a slow file has both marks
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    for item in items:
        if is_long(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
        name, fixtures = getattr(item, "originalname", item.name), getattr(item, "fixturenames", ())
        if not (is_long(item) or item.get_closest_marker("alone")) and is_unit_test(item.path, name, fixtures):
            item.add_marker(pytest.mark.unit)
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=position)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the timeout: waiting for the lock is no hang
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run no test at the same time as one that is marked `alone`, in any worker."""
    with (ROOT / "pyproject.toml").open() as entry, Path(__file__).open() as running:
        fcntl.flock(entry, fcntl.LOCK_EX)  # while a test waits to run alone, no other one starts
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)  # a forked process may hold the file open


@pytest.fixture(scope="session")
def open_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test files of `tests/data/`, unpacked: each has the path that it has in the whole set."""
    folder = tmp_path_factory.mktemp("open-data")
    for source in OPEN_DATA.rglob("*"):
        if source.is_file() and source.parent != OPEN_DATA:
            target = folder / source.relative_to(OPEN_DATA)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".xz" and ".tar" not in source.suffixes:
                target.with_suffix("").write_bytes(lzma.decompress(source.read_bytes()))
            else:
                shutil.copyfile(source, target)
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the whole set of test files; the test is skipped with a reason where it is absent."""
    folder = Path(os.environ.get("GPT2TRAIN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"{NO_REAL_DATA} {folder}; see tests/data/README.md")
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that were skipped for missing data, in one line at the end."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped if isinstance(report.longrepr, tuple)]
    missing = [reason for reason in reasons if reason.startswith(NO_REAL_DATA)]
    if missing:
        terminalreporter.write_line(f"{len(missing)} tests skipped: {missing[0]}", yellow=True)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> "TrainedRun":
    """A small trained run, once for all tests that read a run; they may add files but change none."""
    from tests.trained_run import train_small_run  # loads torch, which most tests do not need

    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    return train_small_run(tmp_path_factory.mktemp("trained"), text)
