"""Muon learns the same on every layout: each process orthogonalises whole matrices."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.jobs import finish, make, start, write, write_tokens
from tests.gpt2train.parity.test_matrix import HERE, MODEL, check

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

# Tensor parallelism takes five times as long as the others on two cores.
SLOW = {1: ("one",), 2: ("dp 2 zero 1", "dp 2 zero 3 offload"), 4: ("pp 2 dp 2 zero 2",)}
REST = {1: ("one",)} | {n: tuple(name for name in LAYOUTS[n] if name not in SLOW[n]) for n in (2, 4)}


def finished(folder: Path, names: dict[int, tuple[str, ...]]) -> dict[str, Path]:
    """The run folders of some layouts, after one job for each number of processes."""
    tokens = write_tokens(folder)
    found: dict[str, Path] = {}
    for processes, chosen in names.items():
        configs = {
            name: make(
                tokens,
                folder / name.replace(" ", "-"),
                model=MODEL,
                batch={"micro_batch": 1, "global_batch": 8},
                optimizer={"name": "muon"},
                parallel=LAYOUTS[processes][name],
            )
            for name in chosen
        }
        job = start(str(HERE / "train_runs.py"), *map(write, configs.values()), processes=processes)
        code, _, err = finish(job, 600)
        assert code == 0, err
        found |= {name: Path(config.output) for name, config in configs.items()}
    return found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return finished(tmp_path_factory.mktemp("slow"), SLOW)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return finished(tmp_path_factory.mktemp("rest"), REST)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for n in (2, 4) for name in SLOW[n]])
def test_layouts_train_like_one_process(name: str, slow: dict[str, Path]) -> None:
    check(slow[name], slow["one"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for n in (2, 4) for name in REST[n]])
def test_further_layouts_train_like_one_process(name: str, rest: dict[str, Path]) -> None:
    check(rest[name], rest["one"])
