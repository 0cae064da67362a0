"""Many faulty clients at once: no leak, no hang, and correct answers."""

from pathlib import Path

import pytest

from benchmarks.adversarial_clients import KINDS
from benchmarks.soak import run


@pytest.mark.exhaustive
def test_many_faulty_clients_cause_no_leak_and_no_hang(tmp_path: Path) -> None:
    found, wrong = run(tmp_path / "model", "nano", seconds=8, clients=12)
    assert wrong == []
    assert {name.partition(":")[0] for name in found.counts} == set(KINDS)
    assert {"whole: right", "stream: right", "burst: some refused"} <= set(found.counts)
