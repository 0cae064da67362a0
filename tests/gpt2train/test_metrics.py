"""The metrics of a run on a disk that is full."""

import resource
from pathlib import Path

import pytest

from gpt2train.errors import RunError, UserError
from gpt2train.metrics import MetricsWriter, read_metrics


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, 0)
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, whole[1]))
        with pytest.raises(RunError, match=r"metrics\.jsonl.*checkpoints are whole"):
            for step in range(1, 100):
                writer.write({"step": step, "loss": 1.0})
        writer.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, whole[1]))
        with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
            MetricsWriter(tmp_path, 99)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, len(steps) + 1)) and 30 < len(steps) < 50
    again = MetricsWriter(tmp_path, 10)  # a run that goes on from step 10
    again.write({"step": 11, "loss": 1.0})
    again.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 12))
