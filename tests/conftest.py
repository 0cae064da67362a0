"""What the tests share: where the real data lies."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Set before torch is imported. Its threads spin while they wait: on two busy cores the tests of the evaluation took
# 86 s with two threads and 14 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real test files; the test is skipped with a reason where they are absent."""
    folder = Path(os.environ.get("GPT2TRAIN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set GPT2TRAIN_TEST_DATA")
    return folder
