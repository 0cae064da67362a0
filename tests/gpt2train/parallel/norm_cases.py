"""Cases of the gradient norm and of updates, also of Muon, on layouts of several processes; run by `run_cases.py`."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, distribute_tensor

from gpt2train.config import RunConfig
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.grad_norm import align_grad_placements, local
from gpt2train.parallel.mesh import TIMEOUT, DistContext
from gpt2train.settings import build
from gpt2train.training.engine import Engine, PendingStats
from gpt2train.training.muon import Muon, is_orthogonalised
from tests.gpt2train.simulate.against import CollectiveBytes, run

MODEL = {"layers": 4, "heads": 4, "hidden": 32, "context": 16, "dropout": 0.0}
CLIP, SCALE = 0.5, 1024.0
OPTIMIZER = {"max_grad_norm": CLIP}


def engine_of(layout: dict[str, Any]) -> Engine:
    rest = {"vocab": 300, "data": {"train": "none"}, "output": "none", "precision": "fp32", "device": "cpu"}
    batch = {"micro_batch": 1, "global_batch": 16}
    config = build(RunConfig, rest, {"model": MODEL, "batch": batch, "parallel": layout, "optimizer": OPTIMIZER})
    return Engine(config, DistContext(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), TIMEOUT))


def value(name: str, size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(len(name) + sum(map(ord, name))))


def fill(engine: Engine) -> None:
    """Give every parameter its gradient; the second copy of the tied one gets nothing, since both are added up."""
    copies = [id(copy) for copy in engine.shared.copies] if engine.shared else []
    for name, parameter in engine.optimizer.named:
        whole = value(name, tuple(parameter.shape)) * (id(parameter) not in copies) * SCALE
        if isinstance(parameter, DTensor):
            parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        else:
            parameter.grad = whole


def measured(engine: Engine, loss: float = 1.0) -> PendingStats:
    return engine.measure(torch.tensor(loss), 4, SCALE, stop=engine.ctx.rank == 3)


def layout(parallel: dict[str, Any]) -> dict[str, Any]:
    """The norm against that of the whole model, the clipped gradients, and what one bad element does."""
    engine = engine_of(parallel)
    fill(engine)
    measure = measured(engine)
    with torch.device("meta"):
        model = GPT2(engine.config.shape)
    whole = {name: value(name, tuple(p.shape)).double() for name, p in model.named_parameters()}
    exact = torch.stack([tensor.square().sum() for tensor in whole.values()]).sum().sqrt().item()
    found: dict[str, Any] = {"norm": measure.read()[1] / exact - 1, "stop": measure.read()[2]}
    found["divisor"] = measure.divisor.item() / (exact / CLIP * SCALE) - 1
    engine.update(measure, 1e-2)
    found["step"] = {value.item() for key, value in engine.optimizer.state().items() if key.endswith("step")} == {1.0}
    name = engine.optimizer.named[-1][0]
    moments = engine.optimizer.state()[f"{name}.exp_avg"]
    mean = moments.full_tensor() if isinstance(moments, DTensor) else moments
    wanted = whole[name].float() * (0.1 * CLIP / exact)
    found["clipped"] = ((mean - wanted).norm() / wanted.norm()).item()
    before = {key: local(tensor).clone() for key, tensor in engine.state().items()}
    for kind in ("inf", "nan"):
        fill(engine)
        if engine.ctx.rank == 2:  # one element of one process
            parameter = [p for _, p in engine.optimizer.named if local(p).numel()][-1]  # the tied one would share it
            local(parameter.grad).view(-1)[-1] = float(kind)
        measure = measured(engine)
        engine.update(measure, 1e-2)
        found[kind] = [measure.bad.item(), engine.culprit(measure)]
        found[f"{kind} untouched"] = all(torch.equal(before[key], local(t)) for key, t in engine.state().items())
    fill(engine)
    measure = measured(engine, float("inf") if engine.ctx.rank == 1 else 1.0)
    found["loss"] = engine.culprit(measure)
    return found


def partial() -> dict[str, Any]:
    """A gradient that is still to be summed becomes the sum, placed as its parameter."""
    engine = engine_of({"tp": 2})
    mesh = next(p for _, p in engine.optimizer.named).device_mesh
    parameter = torch.nn.Parameter(distribute_tensor(torch.zeros(6), mesh))
    parameter.grad = DTensor.from_local(torch.ones(6), mesh, [Partial()] * mesh.ndim)
    align_grad_placements([parameter])
    return {"same": parameter.grad.placements == parameter.placements, "sum": local(parameter.grad).tolist()}


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
