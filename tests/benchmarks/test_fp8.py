"""The comparison of losses with products in 8 bits runs on real text."""

import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks import corpora, fp8


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_comparison_trains_each_arm_once(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(corpora, "DATA", real_data)
    monkeypatch.setattr(sys, "argv", ["fp8", "--output", str(tmp_path), "--steps", "2", "--seeds", "1"])
    shown = []
    for _ in range(2):  # the second time nothing is trained
        fp8.main()
        dist.destroy_process_group()
        shown.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("seed 1, ")])
    assert shown[0] == shown[1] and len(shown[0]) == len(fp8.ARMS)
    assert shown[0][1].endswith("+0.0000 +0.0000") and not shown[0][2].endswith("+0.0000 +0.0000")
