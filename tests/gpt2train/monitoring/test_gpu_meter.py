"""Use of a GPU by NVML: units, GPUs without a counter, and machines without NVML.

The machines that run the tests have no GPU, so that a small module stands in for the bindings, with the names, units
and errors of nvidia-ml-py's documentation.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gpt2train.monitoring.gpu_meter import gpu_meter, open_meter
from gpt2train.monitoring.metrics import gpu_kwh

UUID = "8d7f2c1e-0000-1111-2222-333344445555"


class Nvml(ModuleType):
    """Stand-in for `pynvml` with one GPU."""

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
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_energy_is_that_since_the_last_reading(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    nvml = install(monkeypatch, Nvml())
    meter = open_meter(UUID)
    assert meter is not None
    nvml.millijoules += 3_000_000
    clock[0] += 10
    assert meter.read() == (3000.0, 300.0, 0.87, 20.0)
    nvml.millijoules += 500
    clock[0] += 1
    assert meter.read() == (0.5, 0.5, 0.87, 20.0)


def test_a_gpu_without_a_counter_counts_its_power(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    install(monkeypatch, Nvml(counts=False))
    meter = open_meter(UUID)
    assert meter is not None
    clock[0] += 10
    assert meter.read() == (3500.0, 350.0, 0.87, 20.0)


def test_a_driver_that_fails_later_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(monkeypatch, Nvml())
    meter = open_meter(UUID)
    nvml.driver = False
    assert meter is not None and meter.read() is None


def test_there_is_no_meter_without_library_driver_or_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert open_meter(UUID) is None
    install(monkeypatch, Nvml(driver=False))
    assert open_meter(UUID) is None
    install(monkeypatch, Nvml())
    assert open_meter("another") is None
    assert gpu_meter(torch.device("cpu")) is None


def test_the_energy_of_a_run_is_the_sum_of_its_rows() -> None:
    rows = [{"gpu_joules": 1.8e6}, {}, {"gpu_joules": None}, {"gpu_joules": 0.9e6}]
    assert gpu_kwh(rows, repeated_joules=0.9e6) == 1.0
    assert gpu_kwh([{}, {}]) is None
