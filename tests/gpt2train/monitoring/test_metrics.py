"""The metrics of a run on a disk that is full."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.metrics import MetricsWriter, read_metrics
from gpt2train.store.files import read_json_lines, write_error
from tests.gpt2train.checkpoint.file_limit import file_limit


def test_a_full_disk_is_reported_and_earlier_rows_stay(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, 0)
    with file_limit(1000), pytest.raises(RunError, match=r"metrics\.jsonl.*checkpoints are intact"):
        for step in range(1, 100):
            writer.write({"step": step, "loss": 1.0})
    with file_limit(1000):
        writer.close()
    with file_limit(100), pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        MetricsWriter(tmp_path, 99)
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, len(steps) + 1)) and 30 < len(steps) < 50
    again = MetricsWriter(tmp_path, 10)  # a run that resumes from step 10
    again.write({"step": 11, "loss": 1.0})
    again.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 12))


def test_a_removed_file_ends_the_run(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "run", 0)
    writer.write({"step": 1, "loss": 1.0})
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(UserError, match=r"run/metrics\.jsonl was removed during the run; run again"):
        writer.write({"step": 2, "loss": 1.0})
    with pytest.raises(UserError, match=r"the folder .*/run is missing; put it back, or run again"):
        raise write_error(tmp_path / "run" / "tensorboard", FileNotFoundError(2, "No such file"), "set x = false")


UNREADABLE = [b'{"step": 3, "lo', b"\xff\xfe\x00", b"[3]", b"null", b'{"loss": 1.0}', b'{"step": "3"}']
UNREADABLE += [b"[" * 100_000, b""]


@pytest.mark.parametrize("line", UNREADABLE)
def test_unreadable_lines_are_left_out_and_named(tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    rows = [json.dumps({"step": step, "loss": 1.0}).encode() for step in (1, 2, 4)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*rows[:2], line, rows[2]]) + b'\n{"step": 5')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 4]
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.WARNING):
        writer = MetricsWriter(tmp_path, 4)
    writer.write({"step": 5, "loss": 1.0})
    writer.close()
    assert f"{tmp_path / 'metrics.jsonl'}: line 3 cannot be read; left out" in caplog.text
    assert [json.loads(text)["step"] for text in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2, 4, 5]


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(b'{"step": 1}'))))
def test_any_json_lines_file_is_read_without_an_exception(lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    rows, unreadable = read_json_lines(data)
    assert len(rows) + len(unreadable) == data.count(b"\n")
    assert all(isinstance(row, dict) for row in rows)
    assert lines.count(b'{"step": 1}') <= len(rows)
