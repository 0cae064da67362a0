"""torchrun on this machine: what it waits for before it starts."""

import subprocess
import sys
import time
from pathlib import Path

from gpt2train.rank import only_job_in
from tasks.launch.job import Job
from tasks.launch.local import run_local
from tasks.launch.settings import LaunchSettings

SAVES = """
import sys, time
from pathlib import Path
from gpt2train.rank import only_job_in
with only_job_in(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(3)
"""


def run(folder: Path, grace: float) -> tuple[int, list[str]]:
    """Start a job that ends at once, since it has no settings; its exit code and what was told."""
    told: list[str] = []
    launch = LaunchSettings(processes=1, grace=grace)
    return run_local(Job(str(folder / "config.toml"), launch), told.append), told


def test_a_job_that_lost_its_flow_has_the_time_to_save(tmp_path: Path) -> None:
    waits = f"waiting until the job before this one has saved and ended in {tmp_path}"
    before = subprocess.Popen([sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert before.stdout is not None and before.stdout.readline() == "holds\n"
    code, told = run(tmp_path, 60)
    assert before.poll() == 0
    assert code == 2 and told[0] == waits and "config.toml" in told[-1]
    assert waits not in run(tmp_path, 60)[1]

    with only_job_in(tmp_path):  # not for ever
        begun = time.monotonic()
        assert run(tmp_path, 0.5)[1][0] == waits
        assert time.monotonic() - begun < 60
