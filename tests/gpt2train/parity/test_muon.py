"""Muon learns the same on every layout: each process orthogonalises whole matrices."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.jobs import finish, make, start, write, write_tokens
from tests.gpt2train.parity.test_matrix import HERE, MODEL, worst

LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"one": {}},
    2: {"dp 2": {"zero": 0}, "dp 2 zero 1": {"zero": 1}, "dp 2 zero 3 offload": {"zero": 3, "cpu_offload": True}},
    4: {
        "dp 4 zero 3 hybrid": {"zero": 3, "dp_shard_degree": 2},
        "pp 2 dp 2 zero 2": {"pp": 2, "zero": 2},
        "tp 2 dp 2 zero 3": {"tp": 2, "zero": 3},
        "tp 2 pp 2": {"tp": 2, "pp": 2, "sequence_parallel": False},
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("muon")
    tokens = write_tokens(folder)
    found: dict[str, Path] = {}
    for processes, table in LAYOUTS.items():
        configs = {
            name: make(
                tokens,
                folder / name.replace(" ", "-"),
                model=MODEL,
                batch={"micro_batch": 1, "global_batch": 8},
                optimizer={"name": "muon"},
                parallel=parallel,
            )
            for name, parallel in table.items()
        }
        job = start(str(HERE / "train_runs.py"), *map(write, configs.values()), processes=processes)
        code, _, err = finish(job, 600)
        assert code == 0, err
        found |= {name: Path(config.output) for name, config in configs.items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for processes in (2, 4) for name in LAYOUTS[processes]])
def test_layouts_train_like_one_process(name: str, runs: dict[str, Path]) -> None:
    found = worst(runs[name], runs["one"])
    assert found["loss"] <= 1e-5 and found["grad_norm"] <= 1e-5 and found["valid_loss"] <= 1e-5, found
    assert found["weight"] <= 1e-3, found
