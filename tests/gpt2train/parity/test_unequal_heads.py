"""Heads that the tensor-parallel degree does not divide: resuming and resharding against one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.config import RunConfig
from tests.gpt2train.checkpoint.test_layouts import HALF, saved
from tests.gpt2train.jobs import curve, weights
from tests.gpt2train.parity.test_layouts import job, run


def resumed(tokens: Path, output: Path, before: Path, parallel: dict[str, Any], **changes: Any) -> RunConfig:
    """A GPT-2 that starts with the full state of another run at half its steps."""
    checkpoints = {"init_from": saved(before), "restore": "full"}
    return run(tokens, output, "5 heads", parallel, checkpoints=checkpoints, **changes)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_checkpoint_resumes_bit_for_bit_and_on_other_layouts(tokens: Path, tmp_path: Path) -> None:
    """tp 2 to itself with dropout; and to one process, from there to dp 3, and back to tp 2."""
    drop = {"model": {"dropout": 0.1}}
    job(
        [
            run(tokens, tmp_path / "drop", "5 heads", {"tp": 2}, **drop),
            resumed(tokens, tmp_path / "again", tmp_path / "drop", {"tp": 2}, **drop),
            run(tokens, tmp_path / "tp", "5 heads", {"tp": 2}),
        ],
        2,
    )
    for key in ("loss", "grad_norm"):
        assert curve(tmp_path / "again", key) == curve(tmp_path / "drop", key)[HALF:]
    first, second = weights(tmp_path / "drop"), weights(tmp_path / "again")
    assert all((first[name] == second[name]).all() for name in first)

    batch = {"batch": {"micro_batch": 1, "global_batch": 12}}  # that three processes divide
    job([run(tokens, tmp_path / "one", "5 heads", {}, **batch)], 1)
    job([run(tokens, tmp_path / "split", "5 heads", {"tp": 2}, **batch)], 2)
    job([resumed(tokens, tmp_path / "one after tp", tmp_path / "split", {}, **batch)], 1)
    job([resumed(tokens, tmp_path / "three after tp", tmp_path / "split", {"zero": 3}, **batch)], 3)
    job([resumed(tokens, tmp_path / "tp after one", tmp_path / "one", {"tp": 2}, **batch)], 2)
    expected = np.array(curve(tmp_path / "one"))[HALF:]
    for name in ("one after tp", "three after tp", "tp after one"):
        assert np.max(np.abs(np.array(curve(tmp_path / name)) / expected - 1)) <= 1e-5, name
