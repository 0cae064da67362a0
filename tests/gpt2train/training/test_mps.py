"""Training on Apple's MPS: as there, but on the CPU, without float64 and a fused optimizer; and on a Mac itself."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.inference.settings import SamplingSettings
from gpt2train.model import classification
from gpt2train.parallel import grad_norm
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from gpt2train.training import adamw, engine
from tests.gpt2train.jobs import curve, make
from tests.gpt2train.models import generate_tokens

SMALL: dict[str, Any] = {
    "model": {"layers": 2, "heads": 2, "hidden": 32, "context": 16},
    "batch": {"micro_batch": 2, "global_batch": 4},
    "precision": "fp32",
    "steps": 4,
    "validation": {"interval": 2},
}
needs_mps = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs a GPU of Apple (MPS)")


class NoFloat64(TorchDispatchMode):
    """Refuse operations with results in float64, which raise on MPS."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(isinstance(each, Tensor) and each.dtype == torch.float64 for each in tree_leaves(out)):
            raise AssertionError(f"{func} in float64")
        return out


def losses(folder: Path) -> np.ndarray:
    return np.array(curve(str(folder)))


def test_a_run_without_float64_and_a_fused_optimizer_has_the_same_losses(
    tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make(tokens, tmp_path / "usual", **SMALL), alone)
    with pytest.raises(AssertionError, match="float64"), NoFloat64():
        train(make(tokens, tmp_path / "refused", **SMALL), alone)
    for module in (classification, engine, grad_norm):
        monkeypatch.setattr(module, "sum_dtype", lambda device: torch.float32)
    monkeypatch.setattr(adamw, "FUSED", ())
    with NoFloat64():
        train(make(tokens, tmp_path / "mps", **SMALL), alone)
    np.testing.assert_allclose(losses(tmp_path / "mps"), losses(tmp_path / "usual"), rtol=1e-5)


@needs_mps
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_mps_has_losses_and_texts_of_the_cpu(precision: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    settings = {**SMALL, "precision": precision, "steps": 8}
    train(make(tokens, tmp_path / "cpu", **settings), alone)
    train(make(tokens, tmp_path / "mps", **settings), dataclasses.replace(alone, device=torch.device("mps")))
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    np.testing.assert_allclose(losses(tmp_path / "mps"), losses(tmp_path / "cpu"), rtol=tolerance)
    if precision != "fp32":
        return
    merge(tmp_path / "mps", tmp_path / "model")
    greedy = SamplingSettings(temperature=0, max_new_tokens=8)
    cpu, mps = (
        generate_tokens(read_model(tmp_path / "model", kind), [[1, 2, 3]], None, greedy) for kind in ("cpu", "mps")
    )
    assert cpu == mps
