"""Reports of a run: metrics, log lines, memory, the slowest rank, energy and use of GPUs and CPUs, warnings, a profile.

The machines that run the tests have no GPU, so that a small module stands in for the bindings of NVML, with the names,
units and errors of nvidia-ml-py's documentation.
"""

import json
import logging
import math
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.config import RunConfig
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring import rank_report
from gpt2train.monitoring.cpu_meter import open_cpu_meter
from gpt2train.monitoring.gpu_meter import GpuUse, gpu_meter, open_meter
from gpt2train.monitoring.gpu_peaks import PEAKS, peak_flops
from gpt2train.monitoring.memory_report import HEAD, MAX_ROWS, RankMemory, peak_resident, table
from gpt2train.monitoring.metrics import MetricsWriter, kwh, read_metrics, unreadable_lines
from gpt2train.monitoring.rank_report import RankReport, cpu_columns, gpu_columns, slowest, slowest_line
from gpt2train.monitoring.run_logger import StepTimer, epoch_line, overfitting_warning, step_line, warn_before_start
from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.parallel.mesh import join
from gpt2train.settings import build
from gpt2train.store.files import read_json_lines, write_error
from gpt2train.train import train
from gpt2train.training.phases import PhaseTimer
from tests.gpt2train.checkpoint.file_limit import file_limit
from tests.gpt2train.jobs import make, write_tokens

ROW = {"step": 3, "loss": 2.0, "grad_norm": 0.5, "lr": 1e-3, "skipped": 0}
ROW |= {"tokens_per_second": 12345.6, "memory_gib": 1.5}
UUID = "8d7f2c1e-0000-1111-2222-333344445555"
RANGE = 262_143_328_850  # microjoules, of an Intel server
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


def test_a_line_has_the_values_that_are_known() -> None:
    assert step_line(ROW, 9) == "step 3/9 | loss 2.0000 | grad 0.50 | lr 1.00e-03 | 12,346 tokens/s | 1.50 GiB"
    more = {"mfu": 0.47, "loss_scale": 65536.0, "skipped": 2, "valid_loss": 2.25}
    assert step_line(ROW | more, 9).endswith("| MFU 47.0% | 1.50 GiB | scale 2^16 | skipped 2 | valid 2.2500")


def test_an_epoch_of_several_steps_gets_a_line_when_it_ends() -> None:
    rows = [{"step": step, "loss": float(step), "epoch": 0.4 * step} for step in range(1, 6)]
    lines = [epoch_line(rows[:count]) for count in range(6)]
    assert lines[3:] == ["epoch 1 | steps 1 to 3 | mean loss 2.0000", None, "epoch 2 | steps 4 to 5 | mean loss 4.5000"]
    assert lines[:3] == [None] * 3
    validated = [*rows[:4], rows[4] | {"valid_loss": 3.0, "loss": None}]
    assert epoch_line(validated) == "epoch 2 | steps 4 to 5 | mean loss 4.0000, valid 3.0000"
    rows[3]["valid_loss"] = None  # was not finite
    assert epoch_line([*rows[:4], validated[4]]) == epoch_line(validated)
    assert epoch_line([{"step": 1, "loss": 1.0, "epoch": 1.0}, {"step": 2, "loss": 1.0, "epoch": 2.0}]) is None


@pytest.mark.exhaustive
def test_a_run_logs_its_steps_and_records_a_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gpt2train")
    settings = {"profile": 2, "interval": 25, "tensorboard": False}
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=60, schedule={"warmup": 40}, logging=settings)
    ctx = join("cpu")
    train(config, ctx)
    dist.destroy_process_group()
    assert any(text.startswith("warning: the warm-up takes 40 of 60 steps") for text in caplog.messages)
    steps = [text.split(" |")[0] for text in caplog.messages if text.startswith("step ")]
    assert steps == [f"step {step}/60" for step in (1, 10, 20, 25, 30, 40, 50, 60)]
    rows = read_metrics(config.output)
    assert len(rows) == 60 and all(0.05 < row["memory_gib"] < 64 for row in rows)
    trace = json.loads((tmp_path / "run" / "profile" / "rank-0.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("aten::_fused_adamw_") == 4  # two groups in each of the two recorded steps
    assert "aten::addmm" in (tmp_path / "run" / "profile" / "rank-0.txt").read_text()


GIB = 2**30


def row(rank: int, pp: int = 0, dp: int = 0, tp: int = 0, allocated: int = 0) -> RankMemory:
    return RankMemory(rank, f"node{rank}", pp, dp, tp, 89_714_688, 2 * GIB, allocated, 2 * allocated)


def test_the_table_has_one_line_per_rank_or_per_group() -> None:
    title, head, first, second = table([row(0), row(1, tp=1, allocated=3 * GIB // 2)], "at the end")
    assert (title, head) == ("memory at the end", HEAD)
    assert first.split() == ["0", "node0", "0", "0", "0", "89,714,688", "2.00", "GiB", "-", "-"]
    assert second.split()[4:] == ["1", "89,714,688", "2.00", "GiB", "1.50", "GiB", "3.00", "GiB"]
    assert len(head) == len(first) == len(second)
    # With many ranks only the largest of each group is listed.
    rows = [row(rank, pp=rank % 2, dp=rank // 2, allocated=rank * GIB) for rank in range(MAX_ROWS + 2)]
    title, _, *lines = table(rows, "at the end")
    assert f"of {MAX_ROWS + 2} ranks" in title
    assert [int(line.split()[0]) for line in lines] == [MAX_ROWS, MAX_ROWS + 1]


def test_the_peak_stays_after_memory_is_freed() -> None:
    before = peak_resident()
    block = np.ones(64 << 20, np.uint8)
    del block
    assert before > 10 << 20
    assert peak_resident() >= before
    assert peak_resident() - before < 80 << 20


def test_the_rank_that_works_longest_is_named_if_it_is_slower() -> None:
    found = slowest([(1.0, 1.0), (1.0, 1.0), (2.0, 0.0), (1.5, 0.5)])
    waiting = pytest.approx((0.5 + 0.5 + 0.25) / 3, abs=1e-4)
    assert found == {"slowest_rank": 2, "slowest_rank_excess": 0.6, "waiting": waiting}
    assert slowest([(1.0, 0.0)]) == {}
    assert slowest([(math.nan, math.nan)] * 2) == {}  # on a GPU
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


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{"step": step, "seconds": 1.0} | changes for step in range(1, count + 1)]


def test_the_speed_is_that_of_usual_steps_and_is_followed() -> None:
    """Before the first step nothing is known, and single slow steps do not count."""
    assert TimeLeft().seconds(100) is None
    assert TimeLeft([{"step": 1, "seconds": None}, {"step": 2, "seconds": math.nan}]).seconds(100) is None
    found = rows(40)
    for step in (0, 7, 39):
        found[step]["seconds"] = 600.0
    assert TimeLeft(found).seconds(100) == 60
    assert TimeLeft(found).seconds(40) == 0
    found = [*rows(1000), *({"step": 1000 + step, "seconds": 3.0} for step in range(1, 51))]
    assert TimeLeft(found).seconds(1060) == 30


@pytest.mark.parametrize("done", [250, 251, 499, 500])
def test_pauses_count_by_their_share(done: int) -> None:
    found = rows(done)
    for row in found:
        if row["step"] % 250 == 0:
            row["validation_seconds"] = 25.0
        if row["step"] % 100 == 0:
            row["save_stall_seconds"] = 10.0
    assert TimeLeft(found).seconds(1250) == pytest.approx((1250 - done) * (1 + 0.1 + 0.1))


def test_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    timer = StepTimer(PhaseTimer())
    now[0] += 3
    with timer.paused():
        now[0] += 50
    now[0] += 1
    assert timer.lap() == 4
    now[0] += 2
    assert timer.lap() == 2
    now[0] += 7
    timer.restart()
    now[0] += 1
    assert timer.lap() == 1


GIVEN = {"vocab": 300, "output": "o", "data": {"train": "t"}, "steps": 100, "schedule": {"warmup": 9}}
CONFIG = build(RunConfig, GIVEN)


def validated_rows(train: list[float], valid: list[float | None]) -> list[dict[str, Any]]:
    """One row a step; a validation after every second one."""
    found: list[dict[str, Any]] = []
    for i, (loss, held_out) in enumerate(zip(train, valid, strict=True)):
        found += [{"step": 2 * i + 1, "loss": loss}, {"step": 2 * i + 2, "loss": loss, "valid_loss": held_out}]
    return found


def test_doubtful_settings_are_warned_of_before_the_first_step() -> None:
    assert warn_before_start(CONFIG, 9, [("books", 3.9)]) == []
    assert warn_before_start(CONFIG, 50, []) == []
    (warmup,) = warn_before_start(CONFIG, 51, [])
    assert warmup == "the warm-up takes 51 of 100 steps; schedule.warmup is usually below a tenth"
    (epochs,) = warn_before_start(CONFIG, 9, [("books", 4.1), ("news", 1.0)])
    assert epochs.startswith("4.1 epochs of books")


def test_overfitting_is_warned_of_after_two_rises() -> None:
    falling = [5.0, 4.0, 3.0, 2.5]
    warning = overfitting_warning(validated_rows(falling, [5.1, 4.2, 4.3, 4.4]))
    assert warning is not None
    assert "risen 2 times in a row (4.2000 to 4.4000)" in warning and "step 4 (4.2000)" in warning
    assert overfitting_warning(validated_rows(falling[:3], [5.1, 4.2, 4.3])) is None  # one rise is noise
    assert overfitting_warning(validated_rows(falling, [5.1, 4.2, 4.1, 4.4])) is None
    both_rise = validated_rows([5.0, 4.0, 4.1, 4.2], [5.1, 4.2, 4.3, 4.4])  # which is something else
    assert overfitting_warning(both_rise) is None
    assert overfitting_warning([]) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_a_falling_validation_loss_gives_no_warning(losses: list[float]) -> None:
    ordered: list[float | None] = [*sorted(losses, reverse=True)]
    assert overfitting_warning(validated_rows(losses, ordered)) is None


def test_a_full_disk_is_reported_and_earlier_rows_stay(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, 0)
    with file_limit(1000), pytest.raises(RunError, match=r"size limit .*metrics\.jsonl.*checkpoints are intact"):
        for step in range(1, 100):
            writer.write({"step": step, "loss": 1.0})
    with file_limit(1000):
        writer.close()
    with file_limit(100), pytest.raises(RunError, match=r"size limit .*metrics\.jsonl"):
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
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6' + bytes(50))  # as a power failure leaves the end
    assert "metrics.jsonl: line 5 cannot be read; left out" in (unreadable_lines(tmp_path) or "")


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(b'{"step": 1}'))))
def test_any_json_lines_file_is_read_without_an_exception(lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    rows, unreadable = read_json_lines(data)
    assert len(rows) + len(unreadable) == data.count(b"\n")
    assert all(isinstance(row, dict) for row in rows)
    assert lines.count(b'{"step": 1}') <= len(rows)


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


def test_peak_belongs_to_the_variant_of_the_gpu() -> None:
    assert {name: peak_flops(f"NVIDIA {name}") for name in PEAKS} == PEAKS
    assert {name: peak_flops(name) for name in NAMES} == NAMES
    assert {name: peak_flops(name) for name in UNKNOWN} == dict.fromkeys(UNKNOWN)
