"""Checkpoints of the package megatron-core itself: read, written, and loaded back by it, with its optimizers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from gpt2train.convert.megatron import MegatronCheckpoint, open_megatron
from gpt2train.convert.megatron_core_write import Target, write_megatron_core
from gpt2train.model.causal_lm import Shape, build_model
from tests.gpt2train.convert import megatron_core_peer as peer
from tests.gpt2train.convert.megatron_core_peer import HEADS, TOKENS, VOCAB

ROOT = Path(__file__).parents[3]
SHAPE = Shape(VOCAB, peer.LAYERS, HEADS, peer.HIDDEN, peer.CONTEXT)
MISSING = importlib.util.find_spec("megatron") is None
pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(MISSING, reason="the package megatron-core is missing")]
KINDS = ("fp32", "bf16", "distributed")
FORMS: tuple[Literal["torch", "torch_dist"], ...] = ("torch", "torch_dist")


def run_peer(folder: Path, tp: int, pp: int, jobs: list[dict[str, Any]]) -> None:
    """Run jobs on tp x pp ranks of megatron-core."""
    folder.mkdir(parents=True, exist_ok=True)
    given = folder / "jobs.json"
    given.write_text(json.dumps({"tp": tp, "pp": pp, "store": str(folder / "store"), "jobs": jobs}))
    ranks = []
    for rank in range(tp * pp):
        command = [sys.executable, "-m", "tests.gpt2train.convert.megatron_core_peer", str(given)]
        env = os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (folder / f"{rank}.log").open("w") as log:
            ranks.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT))
    codes = [rank.wait(300) for rank in ranks]
    assert not any(codes), "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in range(tp * pp))


def our_logits(weights: dict[str, Tensor], half: bool) -> Tensor:
    """Logits of our model, with weights as a model in half precision has them."""
    model = build_model(SHAPE)
    model.load_state_dict({n: t.bfloat16().float() if half else t for n, t in weights.items()})
    with torch.no_grad():
        return model.eval()(TOKENS)[..., :VOCAB]


def next_weights(opened: MegatronCheckpoint, half: bool) -> dict[str, Tensor]:
    """Weights after one more step of torch's AdamW from the optimizer's state."""
    weights, state = opened.weights.read(), opened.optimizer
    assert state is not None
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    groups = [
        {"params": [t for t in leaves.values() if (t.dim() > 1) == decayed], "weight_decay": peer.DECAY * decayed}
        for decayed in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=peer.LR, betas=peer.BETAS, eps=peer.EPS)
    for name, leaf in leaves.items():
        seen = weights[name].bfloat16().float() if half else weights[name]
        leaf.grad = peer.gradient(seen)
        keys = ("step", "exp_avg", "exp_avg_sq")
        # Clones, since the step changes them in place, and the source keeps them.
        optimizer.state[leaf] = {key: state.tensors[f"{name}.{key}"].read(torch.float32).clone() for key in keys}
    optimizer.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}


def assert_same_training(opened: MegatronCheckpoint, logits: Path, half: bool) -> None:
    """The logits, and those after one more step, are the peer's."""
    assert opened.weights.shape == SHAPE and opened.notes == () and opened.optimizer is not None
    assert opened.optimizer.updates == 3
    theirs = torch.load(logits)
    torch.testing.assert_close(our_logits(opened.weights.read(), half), theirs["before"], atol=2e-5, rtol=1e-4)
    ours = our_logits(next_weights(opened, half), half)
    assert (theirs["after"] - theirs["before"]).abs().mean() > 0.02  # the step is seen
    if half:  # a weight may be rounded the other way
        assert (ours - theirs["after"]).abs().mean() < 1e-3
    else:
        torch.testing.assert_close(ours, theirs["after"], atol=5e-5, rtol=1e-3)


def saves(root: Path) -> list[dict[str, Any]]:
    """All that megatron-core saves: each optimizer in each format."""
    found = [{"kind": kind, "form": form} for kind in KINDS for form in FORMS]
    found += [{"kind": "distributed", "form": "torch_dist", "sharding": "dp_reshardable"}]
    found += [{"kind": "fp32", "form": "torch_dist", "per_layer": True}]
    return [
        {"do": "save", "folder": str(root / str(n)), "logits": str(root / f"{n}.logits")} | job
        for n, job in enumerate(found)
    ]


@pytest.fixture(scope="module", params=[(1, 1), (2, 2)], ids=["tp1-pp1", "tp2-pp2"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, Any]:
    """All that megatron-core saves on a layout: tp, pp, and the jobs."""
    folder = tmp_path_factory.mktemp("saved")
    tp, pp = request.param
    jobs = saves(folder)
    run_peer(folder / "peer", tp, pp, jobs)
    return tp, pp, jobs


def test_what_megatron_core_saves_is_read_with_its_optimizer(saved: tuple[int, int, Any]) -> None:
    assert {(job["kind"], job["form"]) for job in saved[2]} == {(kind, form) for kind in KINDS for form in FORMS}
    for job in saved[2]:
        opened = open_megatron(Path(job["folder"]), VOCAB, HEADS)
        assert_same_training(opened, Path(job["logits"]), job["kind"] != "fp32")


def test_the_distributed_optimizer_is_written_as_megatron_core_writes_it(
    saved: tuple[int, int, Any], tmp_path: Path
) -> None:
    """Number by number."""
    tp, pp, jobs = saved
    job = next(job for job in jobs if (job["kind"], job["form"]) == ("distributed", "torch"))
    opened = open_megatron(Path(job["folder"]), VOCAB, HEADS)
    target = Target(tp, pp, "local", torch.bfloat16, True)
    write_megatron_core(tmp_path / "m", opened.weights, opened.optimizer, "torch", target)
    files = sorted(Path(job["folder"]).glob("*/distrib_optim.pt"))
    assert len(files) == tp * pp
    for file in files:
        theirs, ours = torch.load(file), torch.load(tmp_path / "m/iter_0000003" / file.parent.name / file.name)
        assert ours.keys() == theirs.keys() and ours[0].keys() == theirs[0].keys()
        ((_, a),), ((_, b),) = ours[0].items(), theirs[0].items()
        assert a.keys() == b.keys() and a["numel_unpadded"] == b["numel_unpadded"]
        for key in ("param", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(a[key], b[key], atol=0, rtol=0)


def test_what_is_written_is_loaded_by_megatron_core_with_its_optimizer(
    saved: tuple[int, int, Any], tmp_path: Path
) -> None:
    """On one rank and on four; torch_dist is written for another layout than it is loaded on."""
    tp, pp, made = saved
    source = open_megatron(Path(made[0]["folder"]), VOCAB, HEADS)
    jobs = []
    for kind in KINDS:
        for form in FORMS:
            folder = tmp_path / f"{kind}-{form}"
            dtype = torch.float32 if kind == "fp32" else torch.bfloat16
            buffers = (kind, form) == ("distributed", "torch")
            target = Target(*((tp, pp) if form == "torch" else (4, 1)), "local", dtype, buffers)
            write_megatron_core(folder, source.weights, source.optimizer, form, target)
            place = folder / "iter_0000003"
            jobs.append({"do": "load", "kind": kind, "form": form, "folder": str(place), "logits": f"{folder}.logits"})
    run_peer(tmp_path / "peer", tp, pp, jobs)
    assert all(Path(job["logits"]).is_file() for job in jobs)
    for job in jobs:
        assert_same_training(source, Path(job["logits"]), job["kind"] != "fp32")
