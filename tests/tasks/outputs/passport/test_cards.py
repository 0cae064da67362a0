"""Energy and hours of a training on the cards."""

from types import SimpleNamespace
from typing import Any

import pytest

from tasks.outputs.passport.cards import training_sections


@pytest.mark.parametrize(
    ("gpu", "cpu", "expected"),
    [
        (1.5, None, "1.5 kWh of the GPUs, by NVML"),
        (None, 0.25, "0.25 kWh of the CPU packages, by RAPL"),
        (1.5, 0.25, "1.5 kWh of the GPUs, by NVML; 0.25 kWh of the CPU packages, by RAPL"),
        (None, None, "unknown (not measured)"),
    ],
)
def test_the_card_names_what_was_measured(gpu: float | None, cpu: float | None, expected: str) -> None:
    run = SimpleNamespace(gpu_kwh=gpu, cpu_kwh=cpu, hours=2.0, rows=[{}])
    training: Any = SimpleNamespace(run=run, devices=("cpu",))
    ((title, text),) = training_sections(training)
    assert title == "Cost"
    assert f"| energy | {expected} |" in text
