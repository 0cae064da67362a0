"""What the tests share: where the real data lies."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.trained_run import TrainedRun

ROOT = Path(__file__).parent.parent

# Set before torch is imported. Its threads spin while they wait: on two busy cores the tests of the evaluation took
# 86 s with two threads and 14 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every file that a step writes is forced to the disk, and so is each record of Prefect's database. A disk that takes
# 20 ms for that made the kill matrix take 8 minutes; in memory it takes one.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


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
