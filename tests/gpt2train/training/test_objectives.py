"""Objectives of one's own: their settings and refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from gpt2train.config import RunConfig
from gpt2train.data.dataset import Dataset
from gpt2train.errors import UserError
from gpt2train.model.objectives import OBJECTIVES, Objective
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import Settings
from gpt2train.train import train
from tests.gpt2train.jobs import make


class Options(Settings):
    smoothing: float = Field(0.0, ge=0, lt=1)


def no_data(config: RunConfig, part: str) -> Dataset | None:
    return None


@pytest.fixture(autouse=True)
def objectives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OBJECTIVES, "_entries", dict(OBJECTIVES._entries))
    place = f"{__name__}:"
    OBJECTIVES.register("own", Objective(data=f"{place}packed_data", options=Options))
    OBJECTIVES.register("nothing", Objective(data=f"{place}no_data"))
    OBJECTIVES.register("missing", Objective(data=f"{place}nowhere"))
    yield


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
