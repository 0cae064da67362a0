"""torchrun on this machine: what it waits for before it starts."""

import subprocess
import sys
from pathlib import Path

from gpt2train.rank import only_job_in
from tasks.launch.job import Job
from tasks.launch.local import run_local, wait_for_the_one_before
from tasks.launch.settings import LaunchSettings

SAVES = """
import sys, time
from pathlib import Path
from gpt2train.rank import only_job_in
with only_job_in(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(3)
"""


def test_a_job_that_lost_its_flow_has_the_time_to_save(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "config.toml"), LaunchSettings(processes=1))
    waits = f"waiting until the job before this one has saved and ended in {tmp_path}"
    before = subprocess.Popen([sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert before.stdout is not None and before.stdout.readline() == "holds\n"
    told: list[str] = []
    code = run_local(job, told.append)
    assert before.poll() == 0
    assert code == 2 and told[0] == waits and "config.toml" in told[-1]  # which is not there

    with only_job_in(tmp_path):  # not for ever
        wait_for_the_one_before(Job(job.config, LaunchSettings(processes=1, grace=0.5)), told.append)
    assert told[2:] == [waits]
    wait_for_the_one_before(job, told.append)
    assert told[3:] == []
