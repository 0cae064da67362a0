"""Energy of the CPU packages by RAPL, from folders as Linux has them."""

import math
from pathlib import Path

import pytest
import torch

from gpt2train.monitoring import rank_report
from gpt2train.monitoring.cpu_meter import open_cpu_meter
from gpt2train.monitoring.metrics import cpu_kwh
from gpt2train.monitoring.rank_report import RankReport, cpu_columns
from gpt2train.parallel.mesh import join

RANGE = 262_143_328_850  # microjoules, of an Intel server


def zone(powercap: Path, folder: str, name: str, microjoules: int) -> Path:
    place = powercap / folder
    place.mkdir(parents=True, exist_ok=True)
    for file, content in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", RANGE)):
        (place / file).write_text(f"{content}\n")
    return place / "energy_uj"


def test_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    packages = [zone(tmp_path, f"intel-rapl:{number}", f"package-{number}", 1_000_000) for number in (0, 1)]
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core", 0),
        zone(tmp_path, "intel-rapl:1:0", "dram", 0),
        zone(tmp_path, "intel-rapl:2", "psys", 0),  # the whole machine, the packages among it
        zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0),  # the same package by another interface
    ]
    (tmp_path / "intel-rapl").mkdir()  # the driver itself, without a counter
    meter = open_cpu_meter(tmp_path)
    assert meter is not None
    packages[0].write_text("3000000\n")
    packages[1].write_text("1500000\n")
    for counter in others:
        counter.write_text("9000000\n")
    assert meter.read() == 2.5
    assert meter.read() == 0.0


def test_a_counter_that_began_again_counts_its_range(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 1_000_000)
    meter = open_cpu_meter(tmp_path)
    assert meter is not None
    for _ in range(2):  # twice between two readings
        counter.write_text(f"{RANGE - 500_000}\n")
        meter.update()
        counter.write_text("1000000\n")
        meter.update()
    assert meter.read() == pytest.approx(0.5 + 1.5 + (RANGE - 1_500_000) / 1e6 + 1.5)


def test_there_is_no_meter_without_counters_to_read(tmp_path: Path) -> None:
    assert open_cpu_meter(tmp_path / "missing") is None
    assert open_cpu_meter(tmp_path) is None
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    counter.unlink()
    counter.mkdir()  # as a file that only root may read: root can read any file
    assert open_cpu_meter(tmp_path) is None


def test_a_counter_that_fails_later_is_unknown_and_ends_no_run(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = open_cpu_meter(tmp_path)
    counter.write_text("")
    assert meter is not None and meter.read() is None
    counter.write_text("5000000\n")
    assert meter.read() is None  # what it took meanwhile is not known


def test_the_energy_of_a_run_is_in_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    monkeypatch.setattr(rank_report, "open_cpu_meter", lambda: open_cpu_meter(tmp_path))
    ctx = join("cpu")
    try:
        report, rows = RankReport(ctx, 2, None), []
        for step in (1, 2, 3, 4):
            counter.write_text(f"{step * 900_000}\n")
            rows.append(report({"step": step}, last=step == 4))
    finally:
        torch.distributed.destroy_process_group()
    # Sent a step before a line, and at the end.
    assert rows == [{}, {"cpu_joules": 0.9}, {}, {"cpu_joules": 2.7}]
    assert cpu_kwh([{}, {"cpu_joules": None}]) is None
    assert cpu_kwh([{"cpu_joules": 1.8e6}], repeated_joules=1.8e6) == 1.0


def test_machines_are_added_up_and_an_unknown_one_makes_all_unknown() -> None:
    assert cpu_columns([10.0, 0.0, 5.5]) == {"cpu_joules": 15.5}
    assert cpu_columns([10.0, 0.0, math.nan]) == {}
