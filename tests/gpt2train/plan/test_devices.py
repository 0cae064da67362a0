"""Visible GPUs of a process: output of nvidia-smi, and CUDA_VISIBLE_DEVICES."""

import stat
from pathlib import Path

import pytest

from gpt2train.plan.devices import find_gpus, parse, visible_of

SAID = """0, GPU-aa11, NVIDIA H200, 143771
1, GPU-bb22, NVIDIA H100 80GB HBM3, 81559
2, GPU-bc33, "Odd, Name", [N/A]
"""


def test_the_output_of_nvidia_smi_is_parsed() -> None:
    first, second, odd = parse(SAID + "No devices were found\n")
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa11", "NVIDIA H200")
    assert first.memory == pytest.approx(150.75, abs=0.01)
    assert (first.tflops, second.tflops, odd.tflops) == (989, 989, None)
    assert odd.name == "Odd, Name"
    assert odd.memory > 0


@pytest.mark.parametrize(
    ("visible", "kept"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,9,1", [0]),  # CUDA: what follows an entry that names none is hidden
        ("-1", []),
        ("GPU-bb22,0", [1, 0]),
        ("GPU-aa", [0]),
        ("0,0", [0]),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices_selects_gpus(visible: str | None, kept: list[int]) -> None:
    assert [gpu.index for gpu in visible_of(parse(SAID), visible)] == kept


def test_nvidia_smi_is_run_and_its_failure_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'E'\n{SAID}E\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [gpu.index for gpu in find_gpus({})] == [0, 1, 2]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    tool.write_text("#!/bin/sh\necho driver not loaded >&2\nexit 9\n")
    assert find_gpus({}) == ()
