"""The README's first command: the whole demo, its time, memory and rejected rows."""

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.mini_pipeline import Mini

SECONDS = 600  # 200-290 s on two quiet cores; 398 s were seen beside another demo
BYTES = 6e9
# Every kind of bad URL and page in the demo's list, by the step that must reject it.
DIRT = {
    "blacklist": {"blacklisted_domain", "duplicate", "forbidden_extension", "malformed", "too_short"},
    "download": {"content_type", "deadline", "not_found", "redirect_loop", "robots_forbidden", "too_large"},
    "extract": {"early_language", "early_short"},
    "clean": {"too_short"},
    "dedup": {"exact_duplicate", "near_duplicate"},
}


@pytest.mark.slow
@pytest.mark.alone  # time and memory are bounded
@pytest.mark.timeout(900)
def test_the_demo_runs_from_an_empty_folder(tmp_path: Path) -> None:
    mini = Mini(tmp_path / "mini", {})
    command = [sys.executable, "-m", "flows.pipeline"]
    began, peak = time.monotonic(), 0
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=mini.environ(), stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, memory(mini.children()))
            time.sleep(1)
    seconds = time.monotonic() - began
    text = (tmp_path / "log").read_text()
    assert process.returncode == 0, text
    assert (tmp_path / "out" / "report" / "report.html").exists()
    print(f"{seconds:.0f} s, peak {peak / 1e9:.2f} GB")
    assert seconds <= SECONDS
    assert peak <= BYTES
    for step, reasons in DIRT.items():
        (line,) = re.findall(rf"^{step} .*$", text, re.M)
        assert {reason for reason in reasons if reason in line} == reasons, line
    first, last = re.search(r"^step 1/.*loss (\S+)", text, re.M), re.findall(r"\| valid (\S+)", text)
    assert first and float(last[-1]) < float(first[1]) - 2.5
    mini.wait_for_the_end()


def memory(processes: list[psutil.Process]) -> int:
    """Resident bytes of processes; pages that they share are counted for each."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
