"""GPUs of this machine that a job occupies."""

import pytest

from gpt2train.config import TrainSettings
from gpt2train.plan.devices import parse
from tasks.train.launch import launchers
from tasks.train.launch.settings import LaunchSettings


def test_a_job_of_this_machine_occupies_its_gpus_or_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = parse("\n".join(f"{n}, GPU-{n}abc, NVIDIA H200, 143771" for n in range(4)))
    monkeypatch.setattr(launchers, "find_gpus", lambda: gpus)
    train = TrainSettings()
    assert launchers.devices_of(train, LaunchSettings(processes=2)) == ("GPU 0", "GPU 1")
    assert launchers.devices_of(train.model_copy(update={"device": "cpu"}), LaunchSettings()) == ("cores",)
    # As the engine does: with fewer GPUs than processes all train on the CPU.
    assert launchers.devices_of(train, LaunchSettings(processes=8)) == ("cores",)


def test_jobs_of_other_machines_occupy_nothing_here() -> None:
    for launch in (LaunchSettings(launcher="slurm"), LaunchSettings(launcher="ssh", hosts=("node1",))):
        assert launchers.devices_of(TrainSettings(device="cpu"), launch) == ()
