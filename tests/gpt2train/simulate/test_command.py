"""The command `gpt2train simulate` on 1,024 ranks, with a tensor-parallel degree that does not divide the heads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = ["simulate", "--preset", "1542m", "--tp", "8", "--pp", "8", "--dp", "16"]


def measured(folder: Path, *options: str) -> tuple[int, dict[str, Any], float, int]:
    """Exit code, JSON, seconds of a core and peak kilobytes of the command in a process of its own."""
    with (folder / "out.json").open("w") as out:
        job = subprocess.Popen([sys.executable, "-m", "gpt2train", *COMMAND, *options, "--json"], stdout=out)
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    found = json.loads((folder / "out.json").read_text())
    return job.returncode, found, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


@pytest.mark.slow
def test_25_heads_on_8_tensor_parallel_ranks_take_less_than_a_minute_and_4_gb(tmp_path: Path) -> None:
    code, found, seconds, kilobytes = measured(tmp_path)
    assert (code, found["layout"]) == (0, {"tp": 8, "pp": 8, "dp": 16, "ranks": 1024})
    assert seconds < 60 and kilobytes < 4e6
    tp = [one for one in found["kinds"][0]["collectives"] if one["group"] == "tp"]
    sent = {one["operation"]: one for one in tp if one["dtype"] == "bfloat16"}
    # Of 6 blocks and 8 micro-batches, forward and backward: weight and bias of qkv, weight of proj.
    assert sent["all-to-all"]["calls"] == 6 * 8 * 2 * 3
    # Seven eighths of a head of the second rank's shard: 3 x 64 rows of 1601 numbers and 64 columns of 1600, in bf16.
    # In the backward pass the first rank receives nothing, since it alone uses its rows.
    received = 7 * 64 // 8 * (3 * 1601 + 1600) * 2
    assert sent["all-to-all"]["bytes"] == 6 * 8 * received
    assert sent["all-to-all"]["bytes"] < 0.02 * sent["all-gather"]["bytes"]
