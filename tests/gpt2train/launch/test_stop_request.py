"""Stop requests: in a training, of a launcher, and of the first process of a container."""

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.launch.exit_codes import LAUNCHER
from gpt2train.launch.rank_process import SIGNAL_DEBOUNCE_SECONDS, StopRequest
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.process import CLOSING, MULTIPLEXERS
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from tests.gpt2train.jobs import make, write, write_tokens
from tests.processes import CONTAINER, read_terminal, wait_for, wait_until_ended


class AskedAt(StopRequest):
    def __init__(self, look: int) -> None:
        self.look = look

    @property
    def requested(self) -> bool:  # type: ignore[override]
        self.look -= 1
        return self.look <= 0


@pytest.mark.exhaustive
def test_a_stop_request_ends_a_validation(tmp_path: Path, alone: DistContext) -> None:
    # 16 micro-batches of validation check twice; the steps before check once each.
    changes = {"batch": {"micro_batch": 1, "global_batch": 2}, "validation": {"interval": 3, "samples": 16}}
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=30, **changes)
    position = train(config, alone, AskedAt(3 + 2))
    rows = read_metrics(config.output)
    assert position.step == 3 and "valid_loss" not in rows[-1]
    assert verify(newest_checkpoint(config.output)).position == position
    assert train(config, alone).step == 30
    assert "valid_loss" in read_metrics(config.output)[-1]


def test_signals_within_a_second_are_one_request_and_a_later_one_ends_at_once() -> None:
    stop = StopRequest()
    stop._on_signal(signal.SIGTERM, None)
    stop._on_signal(signal.SIGINT, None)
    assert stop.requested
    stop._since -= 2 * SIGNAL_DEBOUNCE_SECONDS
    with pytest.raises(KeyboardInterrupt):
        stop._on_signal(signal.SIGTERM, None)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers of signals are those of before after the test."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("launched", [False, True])
def test_a_schedulers_warning_is_a_request_and_never_a_second_one(
    monkeypatch: pytest.MonkeyPatch, launched: bool, number: signal.Signals
) -> None:
    monkeypatch.setenv(LAUNCHER, "1") if launched else monkeypatch.delenv(LAUNCHER, raising=False)
    stop = StopRequest()
    stop.install()
    os.kill(os.getpid(), number)
    assert stop.requested is not launched
    stop._since -= 2 * SIGNAL_DEBOUNCE_SECONDS
    os.kill(os.getpid(), number)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_is_a_request_where_no_launcher_forwards_it(
    monkeypatch: pytest.MonkeyPatch, launched: bool, ignored: bool
) -> None:
    monkeypatch.setenv(LAUNCHER, "1") if launched else monkeypatch.delenv(LAUNCHER, raising=False)
    stop = StopRequest()
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    stop.install()
    os.kill(os.getpid(), signal.SIGHUP)
    assert stop.requested is not (launched or ignored)


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", [["gpt2train.train"], ["gpt2train.launch", "--", "-m", "gpt2train.train"]])
def test_a_training_whose_terminal_is_closed_saves_its_step(tmp_path: Path, entry: list[str]) -> None:
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=100_000, checkpoints={"interval": 100_000})
    command = [sys.executable, "-m", *entry, "--config", write(config)]
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {name: value for name, value in os.environ.items() if name not in MULTIPLEXERS}
        os.execve(command[0], command, environment | {"OMP_NUM_THREADS": "1"})
    shown = read_terminal(terminal)
    try:
        wait_for(lambda: len(read_metrics(config.output)) >= 5, 200, "five steps")
        assert CLOSING.encode() in shown
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert verify(newest_checkpoint(config.output)).position.step == read_metrics(config.output)[-1]["step"] >= 5


# A rank without torch: writes a file when it runs, and on SIGTERM saves slowly.
RANK = """
import os, pathlib, signal, sys, time
from gpt2train.launch.exit_codes import LAUNCHER
from gpt2train.store.process import die_with_parent
die_with_parent(int(os.environ[LAUNCHER]))
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def save(*_):
    (folder / "asked").touch()
    time.sleep(seconds)
    (folder / "saved").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
(folder / "ready").write_text(str(os.getpid()))
time.sleep(600)
"""
# The parent of a launcher, to be killed.
PARENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


class Job:
    def __init__(self, folder: Path, save_seconds: float, grace: float | None) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "rank.py").write_text(RANK)
        with (folder / "said").open("w") as said:
            command = [sys.executable, "-c", PARENT, *self.launcher(grace, save_seconds)]
            self.parent = subprocess.Popen(command, stdout=said)

    def launcher(self, grace: float | None, save_seconds: float) -> list[str]:
        # The parent's id is known to its child alone: `sh` is replaced by the launcher.
        patience = "" if grace is None else f"--grace {grace}"
        words = f'--parent $PPID --lost 3 {patience} -- --standalone "$@"'
        command = ["sh", "-c", f'exec "{sys.executable}" -m gpt2train.launch {words}', "sh"]
        return [*command, str(self.folder / "rank.py"), str(self.folder), str(save_seconds)]

    def processes(self) -> list[psutil.Process]:
        wait_for(lambda: self.has("ready") and (self.folder / "ready").read_text(), 200, "the rank")
        rank = psutil.Process(int((self.folder / "ready").read_text()))
        return [psutil.Process(rank.ppid()), rank]

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()


@pytest.mark.exhaustive
def test_a_job_whose_parent_is_killed_saves_if_it_has_a_shutdown_timeout(tmp_path: Path) -> None:
    times = {"a": (2.0, 60.0), "b": (600.0, 2.0), "c": (1.0, None)}
    jobs = [Job(tmp_path / name, *seconds) for name, seconds in times.items()]
    saves, hasty, without_timeout = jobs
    processes = [process for job in jobs for process in job.processes()]
    for job in jobs:
        job.parent.kill()
    wait_until_ended(processes, 60)
    for job in jobs:
        job.parent.wait()
    assert saves.has("saved")
    assert hasty.has("asked") and not hasty.has("saved")
    assert not without_timeout.has("asked")


@pytest.mark.slow
def test_the_death_of_the_parent_is_no_second_stop_request(tmp_path: Path) -> None:
    """A save that is under way goes on, for the shutdown timeout at most."""
    patient, hasty = Job(tmp_path / "a", 4.0, 60.0), Job(tmp_path / "b", 600.0, 2.0)
    ending: list[psutil.Process] = []
    for job in (patient, hasty):
        launcher, rank = job.processes()
        launcher.send_signal(signal.SIGTERM)
        wait_for(lambda job=job: job.has("asked"), 60, "the signal")
        ending += [launcher, rank]
    time.sleep(1.5)  # signals within one second count as one request anyway
    for job in (patient, hasty):
        job.parent.kill()
        job.parent.wait()
    wait_until_ended(ending, 60)
    assert patient.has("saved") and not hasty.has("saved")


@pytest.mark.slow
def test_a_lost_rank_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    job = Job(tmp_path / "a", 1.0, 60.0)
    _, rank = job.processes()
    rank.kill()
    assert job.parent.wait(60) == 3


# A command that leaves an orphan in a session of its own, and ends when it has been asked to so many times.
COMMAND = '''
import pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
saves = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1], "may save").exists():
    time.sleep(0.02)
pathlib.Path(sys.argv[1], "saved").touch()
"""
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1) or len(asked) < int(sys.argv[2]) or sys.exit(7))
subprocess.Popen([sys.executable, "-c", saves, str(folder)], start_new_session=True)
(folder / "ready").touch()
while True:
    time.sleep(600)
'''


INIT = [sys.executable, "-m", "gpt2train.launch.container_init"]


@pytest.mark.parametrize("container", [False, True], ids=["plain", "container"])
def test_the_init_process_stays_until_all_children_have_ended(tmp_path: Path, container: bool) -> None:
    if container and os.geteuid() != 0:
        pytest.skip("process namespaces need root")
    command = [*INIT, sys.executable, "-c", COMMAND, str(tmp_path), "1"]
    process = subprocess.Popen([*CONTAINER * container, *command])
    try:
        wait_for(lambda: (tmp_path / "ready").exists(), 60, "the command")
        # unshare ignores signals; a container engine signals the first process inside.
        init = psutil.Process(process.pid).children()[0] if container else psutil.Process(process.pid)
        [command_itself] = [child for child in init.children() if str(tmp_path) in child.cmdline()]
        init.send_signal(signal.SIGTERM)
        wait_until_ended([command_itself], 60)
        time.sleep(0.2)  # in which an init process that does not stay would end
        assert init.is_running() and process.poll() is None
        (tmp_path / "may save").touch()
        assert process.wait(60) == 7
        assert (tmp_path / "saved").exists()
    finally:
        process.kill()
        process.wait()


def test_the_init_process_repeats_sigterm(tmp_path: Path) -> None:
    (tmp_path / "may save").touch()
    program = "import sys; from gpt2train.launch import container_init as init; init.RESIGNAL_SECONDS = 1; "
    program += "sys.exit(init.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, sys.executable, "-c", COMMAND, str(tmp_path), "2"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: (tmp_path / "ready").exists(), 60, "the command")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 7
    finally:
        process.kill()
        process.wait()


def test_the_init_process_has_the_exit_code_of_its_command(tmp_path: Path) -> None:
    def code(*command: str) -> int:
        return subprocess.run([*INIT, *command], check=False, timeout=60).returncode

    assert code("true") == 0
    assert code("sh", "-c", "exit 3") == 3
    assert code("sh", "-c", "kill -9 $$") == 128 + signal.SIGKILL
    assert code() == 1


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_rank_that_waits_for_the_others_ends_at_once(tmp_path: Path, rank: int, number: signal.Signals) -> None:
    config = write(make(write_tokens(tmp_path), tmp_path / "run"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "gpt2train.train", "--config", config]
    process = subprocess.Popen(command, env=os.environ | place, stderr=subprocess.DEVNULL)
    try:
        # The default action is in force where it waits; before, the request is noted and found at the wait.
        wait_for((tmp_path / f"run/logs/rank-{rank}.log").exists, 60, "the log of the rank")
        process.send_signal(number)
        assert process.wait(60) in (-signal.SIGTERM, -number)
    finally:
        process.kill()


def test_each_process_reports_a_place_in_the_job_that_is_not_possible(tmp_path: Path) -> None:
    config = write(make(write_tokens(tmp_path), tmp_path / "run"))
    place = {"RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "gpt2train.train", "--config", config]
    ended = subprocess.run(command, env=os.environ | place, stderr=subprocess.PIPE, text=True)
    said = "error: RANK is 1, but WORLD_SIZE gives only 1; the variables belong to different jobs\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize(("node", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_launcher_that_waits_for_another_machine_ends_soon(node: int, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "gpt2train.launch", "--", *place, "rank.py"])
    try:
        # The threads of torch's store run, or try to connect, while it waits.
        wait_for(lambda: psutil.Process(process.pid).num_threads() > 1, 60, "the rendezvous")
        process.send_signal(number)
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
