"""Updates of Muon on a layout against those of one process, bit for bit, and their bytes; run by `run_cases.py`."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from gpt2train.parallel.mesh import DistContext
from gpt2train.training.engine import Engine
from gpt2train.training.muon import Muon, is_orthogonalised
from tests.gpt2train.simulate.against import CollectiveBytes, run

STEPS = 3


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _part(whole: Tensor, parameter: Tensor) -> Tensor:
    """Part of this process of a gradient that all processes have."""
    if not isinstance(parameter, DTensor):
        return whole.clone()
    split = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return split.to_local().clone()


def updates(parallel: dict[str, Any]) -> dict[str, Any]:
    """Names of the matrices and momenta that differ after some steps, one of them skipped; bytes of an update."""
    data = dist.get_world_size() // parallel.get("tp", 1) // parallel.get("pp", 1)
    changes = {"model": {"layers": 2}, "precision": "fp32", "parallel": parallel, "optimizer": {"name": "muon"}}
    config = run(Path("none"), changes, data)
    engine = Engine(config, DistContext(dist.get_rank(), dist.get_world_size(), torch.device("cpu")))
    mine = engine.optimizer
    assert isinstance(mine, Muon)
    named = {name: torch.nn.Parameter(_whole(parameter.detach()).clone()) for name, parameter in mine.named}
    alone = Muon(named.items(), config.optimizer)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        gradients = {name: torch.randn(p.shape, generator=generator) for name, p in named.items()}
        rest = _scalar(1e-2 / (step + 1)), _scalar(2.0), _scalar(float(step == 1))
        alone.step([gradients[name].clone() for name in named], *rest)
        parts = [_part(gradients[name], parameter) for name, parameter in mine.named]
        with CollectiveBytes() as counter:
            mine.step(parts, *rest)
    found = {name: _whole(parameter.detach()) for name, parameter in mine.named} | {
        name: _whole(value) for name, value in mine.state().items()
    }
    expected = {name: parameter.detach() for name, parameter in named.items()} | dict(alone.state())
    matrices = [name for name, parameter in named.items() if is_orthogonalised(name, parameter)]
    compared = [key for name in matrices for key in (name, f"{name}.momentum")]
    return {
        "different": [key for key in compared if not torch.equal(found[key], expected[key])],
        "compared": len(compared),
        "matrices": 4 * sum(named[name].numel() for name in matrices),
        "bytes": {" ".join(key): size for key, size in sorted(counter.bytes.items())},
    }
