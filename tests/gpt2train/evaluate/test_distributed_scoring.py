"""Distributed scoring: the scores of one process, each sequence once; wrong counts are errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.convert.model_folders import write
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import finish, start
from tests.gpt2train.models import noisy_model

RANKS = Path(__file__).parents[1] / "parallel/run_cases.py"
COUNTS = (2, 41)  # the first gives the third process nothing to do
Findings = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    output = tmp_path_factory.mktemp("share") / "found.json"
    cases = [*(f"share_cases.equal {count}" for count in COUNTS), "share_cases.wrong"]
    run_ranks(RANKS, str(output), *cases, processes=3)
    found = json.loads(output.read_text())
    return lambda name: found[name]


@pytest.mark.parametrize("count", COUNTS)
def test_scores_of_several_processes_equal_those_of_one(count: int, findings: Findings) -> None:
    results = findings(f"share_cases.equal {count}")
    assert all(found["same"] and found["count"] == count for found in results)
    assert sum(found["mine"] for found in results) == count
    assert all(found["mine"] < count or count == 2 for found in results)
    assert [found["progress"] for found in results] == [[[found["mine"]] * 2] for found in results]


def test_a_wrong_count_is_an_error(findings: Findings) -> None:
    for said in findings("share_cases.wrong"):
        assert said["whole"] == ""
        assert "1 of 7 sequences were not scored once each (number 4: 0 times)" in said["missing"]
        assert "(number 2: 2 times)" in said["doubled"]
        assert "different passages" in said["other"]
        assert "not finite" in said["broken"]  # of one process, reported by all: no process waits for it


@pytest.mark.exhaustive
def test_a_task_is_scored_by_several_processes(open_data: Path, tmp_path: Path) -> None:
    rows = [{"query": f"{n} and", "choices": ["one", "two of them", f"{n}"], "gold": n % 3} for n in range(40)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.toml").write_text('kind = "multiple_choice"\ndata = ["items.jsonl"]\nshots = 2\n')
    bpe, network = noisy_model(open_data, tmp_path, 64)
    flags = [str(tmp_path / "task.toml"), "--model", str(write(network, tmp_path / "model", bpe))]
    flags += ["--data", str(tmp_path), "--log-samples", "--batch-tokens", "200"]
    found, samples = {}, tmp_path / "model/eval/task.samples.jsonl"
    for name, extra in {"one": [], "tp": ["--tp", "2"], "pp": ["--pp", "2"]}.items():
        command = [sys.executable, "-m", "gpt2train", "evaluate", *flags, *extra]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        found[name] = [json.loads(line)["log_probs"] for line in samples.read_text().splitlines()]
    code, _, err = finish(start("-m", "gpt2train.evaluate", *flags, processes=3))
    assert code == 0, err
    assert [json.loads(line)["log_probs"] for line in samples.read_text().splitlines()] == found["one"]
    for name in ("tp", "pp"):
        for own, alone in zip(found[name], found["one"], strict=True):
            assert own == pytest.approx(alone, abs=1e-4)
    code, _, err = finish(start("-m", "gpt2train.evaluate", *flags[:2], str(tmp_path), *flags[3:]))
    assert code == 2 and err.count("error: ") == 1 and "is neither a model folder" in err, err
