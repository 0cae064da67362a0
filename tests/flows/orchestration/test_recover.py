"""Recovery of deployed runs on a real server and worker: cancelled, killed, worker killed; then run again."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
import tomli_w

from flows.orchestration.run_guard import WORKER_REPORT_SECONDS
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.process import CLOSING
from tests.flows.deployed_run import ENDLESS, SECONDS, Deployed, deploy, only_worker_left, uninterrupted_losses
from tests.flows.mini_pipeline import MARK
from tests.flows.prefect_server import ROOT, PrefectServer
from tests.flows.slow_batches import BATCHES
from tests.flows.small_tokens import prepare_tokens
from tests.processes import CONTAINER, command_of, has_ended, read_terminal, wait_for

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("recover")]


@pytest.fixture(scope="module")
def training(prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    folder = tmp_path_factory.mktemp("training")
    output = prepare_tokens(folder / "out")
    parameters = {"output": str(output), "train": ENDLESS, "launch": {"processes": 2, "retry_delay": 0.1}}
    return deploy(prefect_server, "training", "flows/pretrain.py:pretrain", parameters, output, folder / "worker.log")


def flow_of(deployed: Deployed, worker: psutil.Process) -> psutil.Process:
    (flow,) = [child for child in worker.children() if "prefect" in command_of(child)]
    return flow


@pytest.mark.slow
def test_a_cancelled_crashed_or_killed_run_resumes_when_retried(training: Deployed, tmp_path: Path) -> None:
    with training.server.worker(training.pool, training.log) as worker:
        run = training.start()
        training.wait_for_step(20)
        assert len(training.ranks()) == 2
        training.set_state(run, "CANCELLING", "Cancelling")
        training.wait(run, "CANCELLED")
        wait_for(lambda: only_worker_left(training, worker), SECONDS, "the end of all processes")
        saved = training.saved()
        assert saved == training.steps()[-1] >= 20

        again = training.start()
        training.wait_for_step(saved + 20)
        steps = training.steps()  # each once: the run resumed
        assert steps == list(range(1, steps[-1] + 1)), "no step is repeated"
        losses = [row["loss"] for row in read_metrics(training.folder)]
        # A lost rank makes the training task start again, by a retry that Prefect shows.
        before = training.ranks()
        before[1].kill()
        wait_for(lambda: len(set(training.ranks()) - set(before)) == 2, SECONDS, "new ranks")
        wait_for(lambda: [task["run_count"] for task in training.task_runs(again)] == [2], 60, "the retry")
        assert training.state(again)["type"] == "RUNNING"

        # Prefect's worker sees a flow that was killed.
        flow_of(training, worker).kill()
        assert "-9" in training.wait(again, "CRASHED")["message"]
        wait_for(lambda: only_worker_left(training, worker), SECONDS, "the end of all processes")

    # One run in two pieces, and an undisturbed one.
    straight = uninterrupted_losses(training, tmp_path, saved + 20)
    np.testing.assert_array_equal(losses[: saved + 20], straight)


@pytest.mark.exhaustive
def test_a_run_ends_with_its_worker_and_is_reported_as_crashed(training: Deployed) -> None:
    with training.server.worker(training.pool, training.log) as worker:
        run = training.start_and_wait_for_steps()
        worker.kill()
        training.wait(run, "CRASHED")
        wait_for(lambda: not training.processes(), SECONDS, "the end of all processes")
    saved = training.saved()
    assert saved == training.steps()[-1]

    with training.server.worker(training.pool, training.log) as worker:
        training.set_state(run, "SCHEDULED", "AwaitingRetry")  # the UI's Retry
        training.wait_for_step(saved + 20)
        steps = training.steps()
        assert steps == list(range(1, steps[-1] + 1))
        # A worker that is asked to stop kills its flows and is gone: the job saves, and the reporter reports. Done here
        # by hand, for Prefect's worker now and then waits for its flows instead.
        flow = flow_of(training, worker)
        worker.suspend()
        for process in (flow, worker):
            process.kill()
        assert "was killed" in training.wait(run, "CRASHED")["message"]
        wait_for(lambda: not training.processes(), SECONDS, "the end of all processes")
    assert saved < training.saved() == training.steps()[-1]


@pytest.mark.exhaustive
def test_a_suspended_run_saves_and_is_resumed_in_one_process_at_a_time(training: Deployed) -> None:
    with training.server.worker(training.pool, training.log) as worker:
        run = training.start_and_wait_for_steps()
        training.suspend(run)
        wait_for(lambda: only_worker_left(training, worker), SECONDS, "the end of all processes")
        assert training.state(run)["name"] == "Suspended"
        saved = training.saved()
        assert saved == training.steps()[-1]

        training.resume(run)
        training.wait_for_step(saved + 20)
        first = {process.pid for process in training.ranks()}
        assert len(first) == 2
        # Resumed again before the first process has noticed: the second one waits for it.
        training.suspend(run)
        training.resume(run)

        def next_ranks() -> bool:
            ranks = {process.pid for process in training.ranks()}
            assert len(ranks) <= 2, "two trainings at a time"
            return len(ranks) == 2 and not ranks & first

        wait_for(next_ranks, SECONDS, f"the second process; {training.log}")
        again = training.saved()
        assert again > saved
        training.wait_for_step(again + 20)
        steps = training.steps()
        assert steps == list(range(1, steps[-1] + 1)), "no step is repeated"
        assert training.state(run)["type"] == "RUNNING"
        training.set_state(run, "CANCELLING", "Cancelling")
        training.wait(run, "CANCELLED")


@pytest.mark.exhaustive
def test_the_end_of_a_cancelled_run_is_left_to_a_slow_worker(training: Deployed) -> None:
    """It sets Cancelled whatever the state is by then: a run that was reported and retried was cancelled again."""
    with training.server.worker(training.pool, training.log) as worker:
        run = training.start_and_wait_for_steps()
        worker.suspend()
        training.set_state(run, "CANCELLING", "Cancelling")
        wait_for(lambda: only_worker_left(training, worker, reporters=True), SECONDS, "the run's own end")
        time.sleep(WORKER_REPORT_SECONDS + 15)
        assert training.state(run)["type"] == "CANCELLING"
        worker.resume()
        assert "ended without" not in training.wait(run, "CANCELLED")["message"]
        saved = training.saved()
        retried = training.server.prefect("flow-run", "retry", run)
        assert retried.returncode == 0, retried.stdout + retried.stderr
        training.wait_for_step(saved + 20)
        assert training.state(run)["type"] == "RUNNING"


@pytest.mark.exhaustive
@pytest.mark.parametrize("deed", ["cancel", "pause", "hang up"])
def test_a_run_without_a_worker_is_ended(prefect_server: PrefectServer, tmp_path: Path, deed: str) -> None:
    """Started by hand on a long-lived server, in a terminal: no worker is there to end it, or to resume it."""
    output = prepare_tokens(tmp_path / "out")
    config = {"output": str(output), "train": ENDLESS, "launch": {"processes": 1}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(config))
    command = [sys.executable, "-m", "flows.pretrain", "--config", str(tmp_path / "mine.toml")]
    environment = {name: value for name, value in prefect_server.environment.items() if name not in ("TMUX", "STY")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(command[0], command, environment)
    job, shown = psutil.Process(pid), read_terminal(terminal)

    mine = Deployed(prefect_server, "", "", output, tmp_path / "none.log")  # by hand, without a deployment
    try:
        mine.wait_for_step(20)
        assert CLOSING.encode() in shown
        named = {"any_": [mine.folder.name.replace("tiny", "pretrain-tiny-dp1")]}
        wanted = {"name": named, "state": {"type": {"any_": ["RUNNING"]}}}
        [run] = prefect_server.ask("POST", "flow_runs/filter", flow_runs=wanted)
        state = {
            "cancel": {"type": "CANCELLING", "name": "Cancelling"},
            "pause": {"type": "PAUSED", "name": "Paused"},
        }.get(deed)
        if state:
            mine.server.ask("POST", f"flow_runs/{run['id']}/set_state", state=state)
        else:
            os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        found = mine.state(run["id"])
        assert found["type"] == ("CANCELLED" if state else "CRASHED") and "run again to resume" in found["message"]
        assert state or "the terminal was closed" in found["message"]
        assert mine.saved() == mine.steps()[-1]
        if state:
            wait_for(lambda: b"error: the run was cancelled; run again to resume" in shown, 60, "the line")
    finally:
        if job.is_running():
            job.kill()


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="process namespaces need root")
def test_a_stopped_container_saves_a_checkpoint_first(training: Deployed) -> None:
    under = [*CONTAINER, sys.executable, "-m", "gpt2train.launch.container_init"]
    with training.server.worker(training.pool, training.log, under=under) as container:
        run = training.start_and_wait_for_steps()
        container.children()[0].send_signal(signal.SIGTERM)
        training.wait(run, "CRASHED")  # as the worker ends it: reported by the flow itself, or by its reporter
        wait_for(lambda: not training.processes(), SECONDS, "the end of all processes")
    assert training.saved() == training.steps()[-1]


@pytest.mark.exhaustive
def test_a_run_killed_together_with_its_worker_is_reported_by_the_next_run(training: Deployed) -> None:
    with training.server.worker(training.pool, training.log) as worker:
        run = training.start_and_wait_for_steps()
        flow = flow_of(training, worker)
        worker.suspend()  # or it would report the end of the flow
        for process in (*flow.children(), flow, worker):  # the crash reporter among them, as in a power loss
            process.kill()
        wait_for(lambda: not training.processes(), SECONDS, "the end of all processes")
    assert training.state(run)["type"] == "RUNNING"
    with training.server.worker(training.pool, training.log):
        again = training.start()
        assert "ended without reporting how" in training.wait(run, "CRASHED")["message"]
        training.wait(again, "RUNNING")


@pytest.mark.exhaustive
def test_a_run_in_another_flow_ends_with_its_worker(prefect_server: PrefectServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    parameters = {"settings": {"output": str(output), "workers": 1}, "seconds": 5.0}
    entry = "tests/flows/slow_batches.py:nested_batches"
    nested = deploy(prefect_server, "nested", entry, parameters, output, tmp_path / "worker.log")
    with prefect_server.worker(nested.pool, nested.log) as worker:
        run = nested.start()
        wait_for(lambda: list(output.glob("naps/_batches/*.json")), SECONDS, "a batch")
        worker.kill()
        assert nested.wait(run, "CRASHED")["type"] == "CRASHED"
        wait_for(lambda: not nested.processes(), SECONDS, "the end of all processes")


@pytest.mark.exhaustive
def test_a_served_run_ends_with_the_process_that_serves_it(prefect_server: PrefectServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    prefect_server.environment[MARK] = uuid.uuid4().hex
    parameters = {"settings": {"output": str(output), "workers": 1}, "seconds": 5.0}
    code = f"from tests.flows.slow_batches import slow_batches as s; s.serve(name='served', parameters={parameters})"
    with (tmp_path / "serve.log").open("w") as log:
        serving = subprocess.Popen([sys.executable, "-c", code], env=prefect_server.environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: "served" in (tmp_path / "serve.log").read_text(), SECONDS, "the deployment")
        made = prefect_server.ask("GET", "deployments/name/slow-batches/served")
        served = Deployed(prefect_server, "", made["id"], output, tmp_path / "serve.log")
        run = served.start()
        wait_for(lambda: list(output.glob("naps/_batches/*.json")), SECONDS, "a batch")
    finally:
        serving.kill()
        serving.wait()
    assert served.wait(run, "CRASHED")["type"] == "CRASHED"
    wait_for(lambda: not served.processes(), SECONDS, "the end of all processes")


@pytest.mark.exhaustive
def test_cancelled_batches_leave_no_process_and_keep_committed_work(
    prefect_server: PrefectServer, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    parameters = {"settings": {"output": str(output), "workers": 2}, "seconds": 0.3}
    entry = "tests/flows/slow_batches.py:slow_batches"
    batches = deploy(prefect_server, "batches", entry, parameters, output, tmp_path / "worker.log")

    def done() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in output.glob("naps/_batches/*.json")}

    with prefect_server.worker(batches.pool, batches.log) as worker:
        run = batches.start()
        wait_for(lambda: len(done()) >= 5, SECONDS, "five batches")
        batches.set_state(run, "CANCELLING", "Cancelling")
        batches.wait(run, "CANCELLED")
        wait_for(lambda: only_worker_left(batches, worker), SECONDS, "the end of all processes")
        committed = done()
        assert 5 <= len(committed) < BATCHES
        times = {name: (output / "naps" / name.replace("json", "txt")).read_text() for name in committed}

        again = batches.start()
        batches.wait(again, "COMPLETED")
        assert {name: (output / "naps" / name.replace("json", "txt")).read_text() for name in committed} == times
        assert len(list(output.glob("naps/nap-*.txt"))) == BATCHES
        assert not has_ended(worker)
    shutil.rmtree(output)
