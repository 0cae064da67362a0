"""Slowest rank and GPUs of all processes, in metrics.jsonl and in the log."""

import math
from typing import Any

import pytest

from gpt2train.monitoring.gpu_meter import GpuUse
from gpt2train.monitoring.rank_report import gpu_columns, slowest, slowest_line
from gpt2train.monitoring.run_logger import step_line
from tests.gpt2train.monitoring.test_run_logger import ROW


def test_the_rank_that_works_longest_is_the_slowest() -> None:
    found = slowest([(1.0, 1.0), (1.0, 1.0), (2.0, 0.0), (1.5, 0.5)])
    waiting = pytest.approx((0.5 + 0.5 + 0.25) / 3, abs=1e-4)
    assert found == {"slowest_rank": 2, "slowest_rank_excess": 0.6, "waiting": waiting}
    assert slowest([(1.0, 0.0)]) == {}
    assert slowest([(math.nan, math.nan)] * 2) == {}  # on a GPU


def test_a_line_names_a_rank_only_if_it_is_slower() -> None:
    row: dict[str, Any] = {"slowest_rank": 1, "slowest_rank_excess": 0.31, "waiting": 0.12}
    expected = "slowest rank 1 (b): 31% more work than the median, the others wait 12%"
    assert slowest_line(row, ["a", "b"]) == expected
    assert slowest_line(row | {"slowest_rank_excess": 0.05}, ["a", "b"]) is None
    assert slowest_line({}, ["a", "b"]) is None


def test_gpus_are_added_up() -> None:
    columns = gpu_columns([GpuUse(10.0, 200.0, 0.5, 8.0), GpuUse(*[math.nan] * 4), GpuUse(30.0, 300.0, 0.9, 6.0)])
    assert columns == {"gpu_joules": 40.0, "gpu_watts": 500.0, "gpu_utilization": 0.7, "gpu_memory_gib": 8.0}
    assert gpu_columns([GpuUse(*[math.nan] * 4)]) == {}
    assert " | GPU 70% 500 W" in step_line(ROW | columns, 9)
