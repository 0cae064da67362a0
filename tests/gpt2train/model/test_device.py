"""The choice of a device, and the refusals of what it lacks, by the devices that torch is said to have."""

from typing import Any

import pytest
import torch

from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.model.device import choose_device, sum_dtype
from gpt2train.settings import build, layer
from gpt2train.training.performance import check_mps


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int = 0, apple: bool = False, macos: int = 15) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: macos >= major)


@pytest.mark.parametrize(
    ("name", "gpus", "apple", "processes", "expected"),
    [
        ("auto", 0, False, 1, "cpu"),
        ("auto", 0, True, 1, "mps"),
        ("auto", 0, True, 2, "cpu"),
        ("auto", 1, False, 1, "cuda:0"),
        ("auto", 1, False, 2, "cpu"),
        ("auto", 2, False, 2, "cuda:0"),
        ("cpu", 2, True, 1, "cpu"),
        ("cuda", 2, False, 2, "cuda:0"),
        ("mps", 0, True, 1, "mps"),
        ("cuda", 0, False, 1, "--device cuda: torch finds no GPU on this machine; use --device cpu"),
        ("cuda", 1, False, 2, "--device cuda: 2 processes have 1 GPUs; use --device cpu"),
        ("mps", 1, False, 1, "--device mps: torch finds no GPU of Apple on this machine; use --device cpu"),
        ("mps", 0, True, 2, "--device mps is for one process, and the job has 2; use --device cpu, or one process"),
    ],
)
def test_a_device_is_chosen_or_refused_in_one_line(
    name: str, gpus: int, apple: bool, processes: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, gpus, apple)
    try:
        found = str(choose_device(name, processes, 0, world=processes, option="--device"))
    except UserError as error:
        found = str(error)
    assert found == expected


def config(changes: dict[str, Any]) -> RunConfig:
    return build(RunConfig, layer({"vocab": 300, "data": {"train": "none"}, "output": "none"}, changes))


@pytest.mark.parametrize(
    ("changes", "macos", "refused"),
    [
        ({}, 15, ""),
        ({"precision": "fp16"}, 13, ""),
        ({"parallel": {"activation_checkpointing": "full"}, "model": {"dropout": 0}}, 15, ""),
        ({}, 13, "precision"),
        ({"performance": {"fp8": "rowwise"}}, 15, "performance.fp8"),
        ({"performance": {"compile": "on"}}, 15, "performance.compile"),
        ({"parallel": {"cpu_offload": True}}, 15, "parallel.cpu_offload"),
        ({"parallel": {"activation_checkpointing": "full"}, "model": {"dropout": 0.1}}, 15, "activation_checkpointing"),
    ],
)
def test_mps_refuses_what_it_lacks(
    changes: dict[str, Any], macos: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, apple=True, macos=macos)
    check_mps(config(changes), torch.device("cpu"))
    if not refused:
        check_mps(config(changes), torch.device("mps"))
        return
    with pytest.raises(UserError, match=rf"^device mps has no .*{refused}.*: (set|unset) .*, or use device cpu$"):
        check_mps(config(changes), torch.device("mps"))


def test_only_mps_has_no_float64() -> None:
    found = {kind: sum_dtype(torch.device(kind)) for kind in ("cpu", "cuda", "mps")}
    assert found == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}
