"""The process group of a job with GPUs, as torch is asked for it."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpt2train.launch import rank_store
from gpt2train.launch.process_env import ProcessEnv
from gpt2train.parallel import mesh


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the network variables of this process as they are."""
    monkeypatch.setattr(mesh, "use_loopback", lambda environment: None)
    monkeypatch.setattr(mesh, "forget_loopback", lambda environment: None)


@pytest.mark.parametrize(
    ("kind", "world", "own_gpu", "expected"),
    [("auto", 2, False, "cuda:1"), ("auto", 2, True, "cuda:0"), ("auto", 1, False, None), ("cpu", 2, False, None)],
)
def test_a_rank_is_bound_to_its_gpu(
    kind: str, world: int, own_gpu: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(rank_store, "join", lambda env, timeout: dist.HashStore())
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: seen.update(kwargs))
    rank = world - 1
    ctx = mesh.join(kind, ProcessEnv(rank=rank, local_rank=rank, world=world, local_world=world, own_gpu=own_gpu))
    assert seen["device_id"] == (None if expected is None else torch.device(expected))
    assert expected is None or ctx.device == torch.device(expected)
