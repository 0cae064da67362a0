"""Energy and use of GPUs by NVML and of CPU packages by RAPL, and peaks by the names that drivers report.

The machines that run the tests have no GPU, so that a small module stands in for the bindings, with the names, units
and errors of nvidia-ml-py's documentation.
"""

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gpt2train.monitoring import rank_report
from gpt2train.monitoring.cpu_meter import open_cpu_meter
from gpt2train.monitoring.gpu_meter import gpu_meter, open_meter
from gpt2train.monitoring.gpu_peaks import PEAKS, peak_flops
from gpt2train.monitoring.metrics import kwh
from gpt2train.monitoring.rank_report import RankReport, cpu_columns
from gpt2train.parallel.mesh import join

UUID = "8d7f2c1e-0000-1111-2222-333344445555"


class Nvml(ModuleType):
    class NVMLError(Exception):
        """Error of the library."""

    def __init__(self, counts: bool = True, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.counts, self.driver = counts, driver
        self.millijoules, self.milliwatts = 5_000_000, 350_000

    def _check(self, works: bool) -> None:
        if not works:
            raise self.NVMLError("not there")

    def nvmlInit(self) -> None:
        self._check(self.driver)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._check(uuid == f"GPU-{UUID}")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._check(self.counts and self.driver)
        return self.millijoules

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.milliwatts

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._check(self.driver)
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=80 << 30, free=60 << 30, used=20 << 30)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_energy_is_that_since_the_last_reading_or_power_is_counted(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    nvml = install(monkeypatch, Nvml())
    meter = open_meter(UUID)
    assert meter is not None
    nvml.millijoules += 3_000_000
    clock[0] += 10
    assert meter.read() == (3000.0, 300.0, 0.87, 20.0)
    nvml.millijoules += 500
    clock[0] += 1
    assert meter.read() == (0.5, 0.5, 0.87, 20.0)
    nvml = install(monkeypatch, Nvml(counts=False))
    meter = open_meter(UUID)
    assert meter is not None
    clock[0] += 10
    assert meter.read() == (3500.0, 350.0, 0.87, 20.0)
    nvml.driver = False  # a driver that fails later ends no run
    assert meter.read() is None


def test_there_is_no_meter_without_library_driver_or_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert open_meter(UUID) is None
    install(monkeypatch, Nvml(driver=False))
    assert open_meter(UUID) is None
    install(monkeypatch, Nvml())
    assert open_meter("another") is None
    assert gpu_meter(torch.device("cpu")) is None


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
    meter = open_cpu_meter(tmp_path)
    counter.write_text("")  # a counter that fails later is unknown and ends no run
    assert meter is not None and meter.read() is None
    counter.write_text("5000000\n")
    assert meter.read() is None  # what it took meanwhile is not known
    counter.unlink()
    counter.mkdir()  # as a file that only root may read: root can read any file
    assert open_cpu_meter(tmp_path) is None


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
    assert kwh([{}, {"cpu_joules": None}], "cpu_joules") is None is kwh([{}, {}], "gpu_joules")
    assert kwh([{"cpu_joules": 1.8e6}], "cpu_joules", repeated_joules=1.8e6) == 1.0
    several = [{"gpu_joules": 1.8e6}, {}, {"gpu_joules": None}, {"gpu_joules": 0.9e6}]
    assert kwh(several, "gpu_joules", repeated_joules=0.9e6) == 1.0
    # Machines are added up, and an unknown one makes all unknown.
    assert cpu_columns([10.0, 0.0, 5.5]) == {"cpu_joules": 15.5}
    assert cpu_columns([10.0, 0.0, math.nan]) == {}


NAMES = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA GH200 480GB": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A10G": 70e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA RTX 6000 Ada Generation": 364.2e12,
    "NVIDIA RTX A6000": 154.8e12,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 503.8e12,
    "Tesla V100-SXM2-32GB": 125e12,
    "Tesla V100-PCIE-16GB": 112e12,
    "Tesla T4": 65e12,
}
UNKNOWN = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "Quadro RTX 6000",
    "NVIDIA T400 4GB",
    "NVIDIA H1000",
    "",
]


def test_peak_belongs_to_the_variant_of_the_gpu() -> None:
    assert {name: peak_flops(f"NVIDIA {name}") for name in PEAKS} == PEAKS
    assert {name: peak_flops(name) for name in NAMES} == NAMES
    assert {name: peak_flops(name) for name in UNKNOWN} == dict.fromkeys(UNKNOWN)
