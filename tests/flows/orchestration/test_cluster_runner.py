"""Batches on Ray and Dask clusters, started here or joined: the same bytes, also when a worker is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from flows.compat.ray import bytecode_cache, start_ray
from flows.orchestration.cluster_runner import MODULES, check_cluster, is_remote
from flows.settings import OutputSettings
from gpt2train.errors import UserError
from tests.flows.conftest import Finished
from tests.flows.mini_pipeline import Mini, hashes
from tests.processes import command_of, wait_for

# As an operator would start one: scheduler and workers apart from the command, ended from outside.
DASK = """
import dask, distributed, sys
dask.config.set({"distributed.worker.daemon": False})
if __name__ == "__main__":
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit=0
    )
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
    cluster.close()
"""


def test_addresses_of_other_machines_are_remote() -> None:
    away = ("ray://head.example:10001", "tcp://10.0.0.7:8786", "10.0.0.7:6379", "tls://[2001:db8::1]:8786")
    here = ("tcp://127.0.0.1:8786", "ray://localhost:10001", "127.0.0.1:6379", "tcp://[::1]:8786", "auto")
    assert [one for one in (*away, *here) if is_remote(one)] == [*away]


def test_missing_requirements_of_a_cluster_are_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_dask")
    local = OutputSettings(runner="dask", cluster="tcp://10.0.0.7:8786", output="/out")
    remote = local.model_copy(update={"output": "s3://bucket/out"})
    with pytest.raises(UserError, match="needs --runner ray or --runner dask"):
        check_cluster(local.model_copy(update={"runner": "local"}), has_api=True)
    with pytest.raises(UserError, match=r"cannot write /out on this machine.*s3://.*--shared-disk"):
        check_cluster(local, has_api=True)
    with pytest.raises(UserError, match="set PREFECT_API_URL"):
        check_cluster(remote, has_api=False)
    check_cluster(local.model_copy(update={"shared_disk": True}), has_api=True)
    check_cluster(remote, has_api=True)
    check_cluster(local.model_copy(update={"cluster": None}), has_api=False)
    monkeypatch.setitem(MODULES, "ray", ("nowhere_at_all",))
    with pytest.raises(UserError, match=r"--runner ray \(no module nowhere_at_all\) needs .*gpt2train\[ray\]"):
        check_cluster(local.model_copy(update={"runner": "ray"}), has_api=True)


@pytest.mark.slow
def test_a_missing_cluster_is_reported_in_one_line(mini: Mini, tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask")
    flags = ["--runner", "dask", "--cluster", "tcp://127.0.0.1:1"]
    refused = mini.run("dataprep", "--output", str(tmp_path), *flags, DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="2s")
    assert refused.returncode == 2, refused.stderr
    assert "error: no dask cluster answers at tcp://127.0.0.1:1" in refused.stderr and "--cluster" in refused.stderr


def test_a_failed_start_of_ray_is_retried_without_what_it_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("flows.compat.ray.STATUS_SECONDS", 0.05)
    children: list[subprocess.Popen[bytes]] = []

    def enter(ends_well: bool) -> str:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        time.sleep(0.2)
        if not (ends_well and len(children) == 2):
            raise RuntimeError(f"The current node timed out {len(children)}.")
        return "runner"

    try:
        assert start_ray(lambda: enter(True)) == "runner"  # type: ignore[arg-type,return-value]
        assert children[0].wait(60) == -signal.SIGKILL and children[1].poll() is None
        said = capsys.readouterr().err
        assert "waiting for Ray to start on this machine: 0 s" in said
        assert "Ray did not start on this machine (The current node timed out 1.)" in said
        children.pop(0)
        with pytest.raises(RuntimeError, match="timed out 4"):  # the last of three
            start_ray(lambda: enter(False))  # type: ignore[arg-type,return-value]
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("cached", [False, True])
def test_bytecode_is_cached_unless_it_is_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    (tmp_path / "imported_late.py").write_text("")
    own = ModuleType("own")
    own.__spec__ = ModuleSpec("own", None)
    own.__spec__.cached = str(tmp_path / "own.pyc")
    if cached:
        (tmp_path / "own.pyc").touch()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    before = dict(os.environ)
    ask = "import imported_late; print(imported_late.__cached__)"
    with bytecode_cache(own):
        answer = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
        file = Path(answer.stdout.strip())
        assert file.exists() is not cached
    assert not file.exists()
    assert dict(os.environ) == before
    assert not (tmp_path / "__pycache__").exists()


@contextlib.contextmanager
def running_dask(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    script = folder / "cluster.py"
    script.write_text(DASK)
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip(), process
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def listening(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections("tcp")
            found |= {here.laddr.ip.removeprefix("::ffff:") for here in sockets if here.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_joined_dask_cluster_that_loses_a_worker_gives_the_same_bytes(finished: Finished, tmp_path: Path) -> None:
    pytest.importorskip("prefect_dask")
    mini, output = finished.mini.another(tmp_path / "mini"), tmp_path / "out"
    with running_dask(tmp_path) as (address, cluster):
        process = mini.start("dataprep", "--output", str(output), "--runner", "dask", "--cluster", address)
        wait_for(lambda: (output / "documents").exists() or process.poll() is not None, 240, "the extraction")
        time.sleep(1)
        nannied = [child for child in psutil.Process(cluster.pid).children() if "spawn_main" in command_of(child)]
        max(nannied, key=lambda one: one.pid).kill()
        assert process.wait(500) == 0, (mini.folder / "started.log").read_text()
        assert hashes(output / "tokens") == hashes(finished.output / "tokens")
        assert hashes(output / "evalset") == hashes(finished.output / "evalset")
        mini.wait_for_the_end()
        assert cluster.poll() is None  # a cluster that was joined is left running


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_ray_cluster_of_its_own_that_loses_a_worker_gives_the_same_bytes(finished: Finished, tmp_path: Path) -> None:
    pytest.importorskip("prefect_ray")
    mini, output = finished.mini.another(tmp_path / "mini"), tmp_path / "out"
    # Ray's sockets lie below this folder, and the path of a socket may have 107 characters.
    place = os.environ.get("RAY_TMPDIR", "/tmp")
    process = mini.start("dataprep", "--output", str(output), "--runner", "ray", RAY_TMPDIR=place)
    busy: list[psutil.Process] = []

    def begun() -> bool:
        commands = {child: command_of(child) for child in mini.children()}
        # Ray's own agents are called so too, and with one of them the whole node dies.
        busy[:] = [
            child
            for child, command in commands.items()
            if command.startswith("ray::") and "IDLE" not in command and "Agent" not in command
        ]
        return bool(busy) or process.poll() is not None

    wait_for(begun, 240, "a batch in a worker of Ray")
    assert listening(mini.children()) <= {"127.0.0.1", "::1"}
    max(busy, key=lambda one: one.pid).kill()
    assert process.wait(500) == 0, (mini.folder / "started.log").read_text()
    assert hashes(output / "tokens") == hashes(finished.output / "tokens")
    mini.wait_for_the_end()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_ctrl_c_leaves_nothing_of_a_cluster(finished: Finished, tmp_path: Path, kind: str) -> None:
    pytest.importorskip(f"prefect_{kind}")
    mini, output = finished.mini.another(tmp_path / "mini"), tmp_path / "out"
    process = mini.start("dataprep", "--output", str(output), "--runner", kind)
    wait_for(lambda: (output / "documents").exists() or process.poll() is not None, 240, "the extraction")
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    mini.wait_for_the_end()
    assert "error: interrupted" in (mini.folder / "started.log").read_text()
