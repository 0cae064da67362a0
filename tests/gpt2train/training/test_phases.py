"""Phases of a step: what is counted where, their sum, and who waits for whom."""

import statistics
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_logger import phase_line
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from gpt2train.training.phases import PHASES, PhaseTimer, StreamPhaseTimer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import make, write

SLOW_RANK = Path(__file__).parent / "slow_rank.py"
SECONDS = 0.3  # that the slow rank sleeps in each step


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of a clock that the test sets."""
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    return clock


def test_a_phase_within_another_is_counted_once(now: list[float]) -> None:
    phases = PhaseTimer()
    with phases("backward"):
        now[0] += 1
        with phases("forward"):
            now[0] += 2
            with phases("communication"):
                now[0] += 4
        now[0] += 8
    now[0] += 16
    expected = {"data": 0, "forward": 2, "backward": 9, "communication": 4, "optimizer": 0, "other": 16}
    assert phases.lap() == expected
    assert phases.lap() == dict.fromkeys(PHASES, 0)


def test_pauses_and_other_threads_do_not_count(now: list[float]) -> None:
    phases = PhaseTimer()

    def elsewhere() -> None:
        with phases("communication"):
            now[0] += 1

    with phases("optimizer"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with phases.paused():
            now[0] += 50
            with phases("communication"):
                now[0] += 50
        now[0] += 2
    assert phases.lap()["optimizer"] == 3
    now[0] += 7
    phases.restart()
    now[0] += 4
    found = phases.lap()
    assert found["other"] == sum(found.values()) == 4


def test_an_error_leaves_the_phase(now: list[float]) -> None:
    phases = PhaseTimer()
    with pytest.raises(ValueError), phases("data"):
        now[0] += 1
        raise ValueError
    now[0] += 2
    assert phases.lap()["other"] == 2


def test_the_line_has_means_and_shares() -> None:
    rows = [{"data_seconds": 0.001, "forward_seconds": 0.4}, {"data_seconds": 0.003, "forward_seconds": 1.596}]
    assert phase_line(rows) == "a step takes 1.00 s: data 2 ms 0%, forward 998 ms 100%"


def shares(run: str | Path) -> list[float]:
    """Of each step the sum of its phases, as a multiple of its seconds."""
    return [sum(row[f"{name}_seconds"] for name in PHASES) / row["seconds"] for row in read_metrics(run)]


@pytest.mark.slow
def test_phases_add_up_to_the_seconds_of_a_step(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run")
    wait = dist.distributed_c10d.Work.wait
    train(config, alone)
    assert dist.distributed_c10d.Work.wait is wait
    # The two clocks are read one after the other; a busy machine can stop the process between them, in single steps.
    assert statistics.median(abs(share - 1) for share in shares(config.output)) < 0.02
    rows = read_metrics(config.output)
    for name in ("forward", "backward", "optimizer"):
        assert statistics.median(row[f"{name}_seconds"] for row in rows) > 0, name
    named = [sum(row[f"{name}_seconds"] for name in PHASES[:-1]) / row["seconds"] for row in rows]
    assert statistics.median(named) > 0.5


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("parallel", "kind"),
    [({"zero": 0}, "wait"), ({"zero": 3}, "wait"), ({"tp": 2}, "wait"), ({"pp": 2}, "wait"), ({}, "data")],
    ids=["dp", "zero 3", "tp", "pp", "data"],
)
def test_waiting_has_a_phase_of_its_own(parallel: dict[str, Any], kind: str, tokens: Path, tmp_path: Path) -> None:
    """Rank 1 sleeps in each step, and is named as the slowest; or the batches of rank 0 come late."""
    changes = {"steps": 6, "logging": {"interval": 3}, "performance": {"prefetch": kind == "wait"}}
    config = make(tokens, tmp_path / "run", parallel=parallel, **changes)
    run_ranks(SLOW_RANK, write(config), kind, str(SECONDS))
    rows = read_metrics(config.output)
    name = {"wait": "communication", "data": "data"}[kind]
    medians = {phase: statistics.median(row[f"{phase}_seconds"] for row in rows) for phase in PHASES}
    # Rank 0 waits less than the other one sleeps if a busy machine stops it meanwhile.
    assert medians[name] > SECONDS / 3 and medians[name] == max(medians.values()), medians
    if parallel == {"zero": 0}:
        named = {row["step"]: row for row in rows if "slowest_rank" in row}
        assert list(named) == [3, 6] and {row["slowest_rank"] for row in named.values()} == {1}
        assert all(row["slowest_rank_excess"] > 0.1 and 0.1 < row["waiting"] < 1 for row in named.values())
    assert statistics.median(abs(share - 1) for share in shares(config.output)) < 0.02


class FakeEvent:
    """Event of a device that computes three seconds behind the host."""

    now: ClassVar[float] = 0.0
    made: ClassVar[int] = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self) -> None:
        self.time = FakeEvent.now + 3

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.time - self.time) * 1e3


def test_a_stream_is_cut_where_a_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    phases = StreamPhaseTimer()
    for step in range(50):
        with phases("backward"):
            FakeEvent.now += 2
            with phases("forward"):
                FakeEvent.now += 1
        with phases("optimizer"):  # the gradient norm of this step
            FakeEvent.now += 0.5
            phases.cut()
        with phases.paused():
            FakeEvent.now += 100
        with phases("optimizer"):  # the update, which is queued behind it
            FakeEvent.now += 4
        phases.restart()
        expected = {"data": 0, "forward": 1, "backward": 2, "optimizer": 4.5 if step else 0.5, "other": 0}
        assert phases.lap() == expected
    assert FakeEvent.made < 25  # they are used again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_phases_of_a_gpu_add_up(tokens: Path, tmp_path: Path) -> None:
    from gpt2train.parallel.mesh import join

    config = make(tokens, tmp_path / "run", device="cuda", steps=40, validation={"interval": 1000})
    train(config, join("cuda"))
    dist.destroy_process_group()
    rows = read_metrics(config.output)[5:]
    assert "communication_seconds" not in rows[0]
    total = sum(row[f"{name}_seconds"] for row in rows for name in PHASES if name != "communication")
    assert abs(total / sum(row["seconds"] for row in rows) - 1) < 0.1
    assert all(row["forward_seconds"] > 0 and row["backward_seconds"] > 0 for row in rows)
