"""Objectives: a loss and scores of one's own, their settings and refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from gpt2train.config import CONFIG_FILE, RunConfig, read_run_config
from gpt2train.data.dataset import Dataset
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.model.objectives import OBJECTIVES, Objective
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import Settings
from gpt2train.train import train
from tests.gpt2train.jobs import VOCAB, curve, make, weights


class Options(Settings):
    smoothing: float = Field(0.0, ge=0, lt=1)


def loss_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    assert logits.shape[-1] == VOCAB  # no padding rows
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")


def right_answers(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([(logits.argmax(-1) == targets).sum().double(), torch.tensor(targets.numel()).double()])


def accuracy(sums: Any, counted: int) -> dict[str, float]:
    assert sums[1] >= counted  # samples of padding are scored as well
    return {"accuracy": sums[0] / counted}


def no_data(config: RunConfig, part: str) -> Dataset | None:
    return None


def with_options(config: RunConfig, part: str) -> Dataset | None:
    assert config.objective.options == {"smoothing": 0.0}
    return packed_data(config, part)


@pytest.fixture(autouse=True)
def objectives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OBJECTIVES, "_entries", dict(OBJECTIVES._entries))
    place = f"{__name__}:"
    OBJECTIVES.register(
        "own",
        Objective(
            data=f"{place}with_options",
            options=Options,
            loss=f"{place}loss_of_logits",
            scores=f"{place}right_answers",
            sums=2,
            metrics=accuracy,
        ),
    )
    OBJECTIVES.register("nothing", Objective(data=f"{place}no_data"))
    OBJECTIVES.register("missing", Objective(data=f"{place}nowhere"))
    yield


@pytest.mark.exhaustive
def test_a_loss_of_ones_own_on_the_logits(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    settings = {"steps": 4, "validation": {"interval": 1, "samples": 6}}
    plain = make(tokens, tmp_path / "plain", **settings)
    own = make(tokens, tmp_path / "own", objective={"name": "own", "options": {"smoothing": 0.0}}, **settings)
    train(plain, alone)
    train(own, alone)
    # The same loss, computed from all logits in place of chunk by chunk.
    assert curve(own.output) == pytest.approx(curve(plain.output), rel=1e-5)
    assert curve(own.output, "valid_loss") == pytest.approx(curve(plain.output, "valid_loss"), rel=1e-5)
    assert all(
        torch.allclose(tensor, weights(plain.output)[name], atol=1e-5) for name, tensor in weights(own.output).items()
    )
    assert 0 < max(curve(own.output, "valid_accuracy")) < 1
    assert "objective" not in (Path(plain.output) / CONFIG_FILE).read_text()
    again = read_run_config(Path(own.output) / CONFIG_FILE)
    assert again.objective.name == "own" and again.objective.options == {"smoothing": 0.0}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "unknown"}, r"objective.name: there is no objective 'unknown'; choose from"),
        ({"name": "own", "options": {"smoothing": 1}}, r"objective\.options: objective own: smoothing: "),
        ({"name": "own", "options": {"smooth": 0.1}}, r"objective own: unknown setting 'smooth'; "),
        ({"name": "next_token", "options": {"x": 1}}, r"objective next_token: unknown setting 'x'; "),
        ({"name": "nothing"}, r"the objective nothing has no training data; its `data` returned None"),
        ({"name": "missing"}, r"cannot import .*:nowhere, which .* names \(AttributeError"),
    ],
)
def test_wrong_objectives_are_refused_in_one_line(
    tokens: Path, tmp_path: Path, alone: DistContext, objective: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        train(make(tokens, tmp_path / "run", objective=objective), alone)
    assert "\n" not in str(caught.value)
