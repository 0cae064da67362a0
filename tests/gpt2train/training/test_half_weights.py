"""Weights cast once a step: the same numbers as by autocast, and the weights of the model stay as they are."""

from typing import Any

import pytest
import torch

from benchmarks.gpu import tiny
from benchmarks.gpu.tiny import engine_of, losses, twin
from gpt2train.parallel.mesh import DistContext
from gpt2train.training import engine

CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"model": {"family": "llama"}},
    "recomputed": {"parallel": {"activation_checkpointing": "full"}},
    "fp16": {"precision": "fp16"},
}


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch, alone: DistContext) -> None:
    """Use the process group of the tests."""
    monkeypatch.setattr(tiny, "context", lambda: alone)


@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in CHANGES if n != "llama")])
def test_weights_cast_once_a_step_change_no_number(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = twin(None, {"precision": "bf16", "batch": {"micro_batch": 2, "global_batch": 8}} | CHANGES[name])
    found = []
    for once in (False, True):
        monkeypatch.setattr(engine, "casts_once", lambda config, device, once=once: once)
        found.append(losses(config, "cpu", 4))
    assert found[0] == found[1]


def test_callbacks_see_the_weights_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "casts_once", lambda config, device: True)
    with engine_of(twin(None, {"precision": "bf16"}), "cpu") as made:
        kinds = {parameter.dtype for parameter in made.parameters()}
        assert kinds == {torch.float32} and made._half is not None
        with made._half.in_place():
            assert {parameter.dtype for parameter in made.parameters()} == {torch.float32, torch.bfloat16}
        assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}
