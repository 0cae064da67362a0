"""Gradient norm and the vote to skip a step, on every kind of layout of four processes, in one job."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpt2train.forked_ranks import run_ranks

pytestmark = pytest.mark.slow

RANKS = Path(__file__).parent / "run_cases.py"
LAYOUTS = {
    "replicas": {"zero": 0},
    "shards": {"zero": 3},
    "hybrid": {"zero": 2, "dp_shard_degree": 2},
    "offloaded": {"zero": 3, "cpu_offload": True},
    "tensor and shards": {"tp": 2, "zero": 3},
    "tensor and replicas": {"tp": 2, "sequence_parallel": False},
    "pipeline and shards": {"pp": 2, "zero": 1},
    "pipeline and tensor": {"pp": 2, "tp": 2},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2},
}
Findings = Callable[[str], list[dict[str, Any]]]


def case(name: str) -> str:
    return "norm_cases.layout " + repr(LAYOUTS[name]).replace(" ", "")


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    output = tmp_path_factory.mktemp("norm") / "found.json"
    cases = [*map(case, LAYOUTS), "norm_cases.partial"]
    run_ranks(RANKS, str(output), *cases, processes=4)
    found = json.loads(output.read_text())
    return lambda name: found[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_norm_is_that_of_the_whole_model(name: str, findings: Findings) -> None:
    for found in findings(case(name)):
        assert abs(found["norm"]) < 1e-6 and abs(found["divisor"]) < 1e-6, found
        assert found["clipped"] < 1e-5 and found["step"] and found["stop"], found


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_non_finite_element_makes_all_ranks_skip_and_is_named(name: str, findings: Findings) -> None:
    everybody = findings(case(name))
    for kind in ("inf", "nan"):
        assert all(found[kind][0] == 1 and found[f"{kind} untouched"] for found in everybody)
        culprits = {found[kind][1] for found in everybody}
        assert len(culprits) == 1 and culprits.pop().endswith("on rank 2"), everybody
    assert {found["loss"] for found in everybody} == {"the loss on rank 1"}


def test_a_partial_gradient_is_summed(findings: Findings) -> None:
    for found in findings("norm_cases.partial"):
        assert found["same"] and len(set(found["sum"])) == 1 and found["sum"][0] > 1
