"""The launcher of docs/develop/add-a-launcher.md, as an installed distribution."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import to_toml
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from tasks.train.launch.registry import Launcher, launchers, register_launcher
from tasks.train.launch.settings import LaunchSettings
from tests.gpt2train.jobs import make, write_tokens
from tests.processes import command_of, wait_for, wait_until_ended
from tests.tasks.plugin_page import ROOT, files_of, install, run

PAGE = "add-a-launcher.md"
SECONDS = 120.0


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    """The processes of a job that train."""
    found = [child for child in process.children(recursive=True) if "-m gpt2train.train" in command_of(child)]
    return [child for child in found if "gpt2train.launch" not in command_of(child)]


@pytest.mark.slow
def test_the_launcher_of_the_page_runs_a_job_and_lets_it_save(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    config = make(write_tokens(tmp_path / "tokens"), tmp_path / "run", steps=1_000_000)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    install(PAGE, tmp_path)
    settings = json.dumps(tomllib.loads(files_of(PAGE)["run.toml"])["launch"])
    command = [sys.executable, "-m", "tests.tasks.train.launch.submit_job", str(tmp_path / "run/config.toml"), settings]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: read_metrics(tmp_path / "run"), SECONDS, "metrics")
        ranks = ranks_of(psutil.Process(process.pid))
        assert [rank.nice() for rank in ranks] == [min(19, psutil.Process().nice() + 15)] * 2
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, printed
    assert read_manifest(newest_checkpoint(tmp_path / "run")).position.step > 0
    wait_until_ended(ranks)


def test_settings_of_the_launcher_are_checked(tmp_path: Path) -> None:
    install(PAGE, tmp_path)
    code = "import json, sys; from gpt2train.settings import build; "
    code += "from tasks.train.launch.settings import LaunchSettings; build(LaunchSettings, json.loads(sys.argv[1]))"
    wrong = run(code, json.dumps({"launcher": "nice", "nice": {"niceness": 20}}), plugins=tmp_path)
    assert "settings: nice.niceness: input should be less than or equal to 19 (got 20)" in wrong.stderr
    wrong = run(code, json.dumps({"launcher": "nise"}), plugins=tmp_path)
    assert "launcher: input should be 'torchrun', 'ssh', 'slurm' or 'nice' (got 'nise')" in wrong.stderr


def test_launchers_without_plug_ins() -> None:
    assert list(launchers()) == ["torchrun", "ssh", "slurm"]
    with pytest.raises(UserError, match="launcher: input should be 'torchrun', 'ssh' or 'slurm' \\(got 'nice'\\)"):
        build(LaunchSettings, {"launcher": "nice"})


@pytest.mark.parametrize(("name", "message"), [("hosts", "is no setting"), ("nice", "must not import them")])
def test_a_wrong_registration_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_launcher(name, Launcher(lambda job, on_line: 0))
