"""The ssh launcher: its remote agent, and two machines with an sshd each, joined by a cable that is cut."""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import RunConfig, to_toml
from gpt2train.errors import UserError
from gpt2train.launch.ssh_agent import GO, READY, RemoteJobRequest, release
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.train.launch.job import LOST, Job
from tasks.train.launch.launchers import LaunchSettings, check_launcher
from tasks.train.launch.ssh import run_ssh
from tests.gpt2train.jobs import curve, finish, make, start, write_tokens
from tests.network_namespaces import ip
from tests.network_namespaces import networks as networks
from tests.processes import environment_of, has_ended, wait_for, wait_until_ended

ROOT = Path(__file__).parents[4]
SHELL = "env AT={host} sh -c"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Run a job by ssh, with other settings of it; its exit code and lines."""

    def run(*, hosts: tuple[str, ...] = ("here",), restarts: int = 0, **ssh: Any) -> tuple[int, list[str]]:
        how = {"command": SHELL, "folder": str(ROOT), "peer_timeout": 30} | ssh
        base = {"launcher": "ssh", "hosts": hosts, "endpoint": "127.0.0.1:29500"}
        launch = build(LaunchSettings, base, {"restarts": restarts, "ssh": how})
        lines: list[str] = []
        code = run_ssh(Job(f"{tmp_path}/config.toml", launch), lines.append)
        assert not list(tmp_path.iterdir())
        return code, lines

    return run


def order(run: Path, **changes: Any) -> RemoteJobRequest:
    base = {"release": release(), "run": str(run), "token": "token", "node": "here", "arguments": ("--help",)}
    return build(RemoteJobRequest, base, {"peer_timeout": 30.0, "shutdown_timeout": 1.0}, changes)


def answer(text: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "gpt2train.launch.ssh_agent"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"launcher": "ssh"}, "need each other"),
        ({"hosts": ["a"]}, "need each other"),
        ({"launcher": "ssh", "hosts": ["a", "a"]}, "names a machine twice"),
        ({"launcher": "ssh", "hosts": ["-oProxyCommand=x"]}, "is not a host name"),
        ({"launcher": "ssh", "hosts": ["a", "b"], "nodes": 3}, "launch.nodes is 3, but launch.hosts has 2"),
        ({"launcher": "ssh", "hosts": ["a"], "ssh": {"command": "ssh gpu01"}}, "must contain {host}"),
    ],
)
def test_invalid_hosts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LaunchSettings, settings)


def test_a_missing_remote_shell_is_refused_before_anything_starts() -> None:
    how = build(LaunchSettings, {"launcher": "ssh", "hosts": ["a"], "ssh": {"command": "no-such-shell {host}"}})
    with pytest.raises(UserError, match="starts with no-such-shell, which is not here"):
        check_launcher(how, "out")


def test_a_host_that_cannot_take_part_is_named_with_the_remedy(run: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = run(python="/nowhere/python")
    assert code == 2 and len(lines) == 1, lines
    assert lines[0].startswith("error: here has no gpt2train of this release under /nowhere/python in ")
    code, lines = run(folder="/nowhere")
    assert code == 2 and "/nowhere" in lines[-1] and "launch.ssh.folder" in lines[-1], lines
    code, lines = run(command="sh -c 'echo me@{host}: Permission denied >&2; exit 255' --")
    assert code == 2 and len(lines) == 1, lines
    assert "here cannot be reached (me@here: Permission denied)" in lines[0] and "without a password" in lines[0]
    code, lines = run(command="sh -c 'echo {host}: No route to host; exit 255' --", restarts=3)
    assert code == LOST and lines[0].startswith("error: here cannot be reached (here: No route to host)"), lines
    code, lines = run(command="sh -c 'sleep 60 # {host}' --", peer_timeout=1)
    assert (code, lines) == (LOST, ["error: here did not answer within 1 s"])


def test_one_failing_host_ends_all_before_the_start(run: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = run(hosts=("here", "there"), command="env AT={host} sh -c '[ $AT = here ] && eval \"$0\" || exit 7'")
    assert code == 2 and lines[0].startswith("error: there has no gpt2train"), lines


def test_a_remote_agent_refuses_orders_it_cannot_follow(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    assert answer(order(tmp_path).model_dump_json() + "\n") == (0, f"{READY}\n", "")  # and ends when that is all
    code, out, err = answer(order(tmp_path, token="other").model_dump_json() + "\n")
    assert (code, out) == (2, "") and err.endswith("the other machines; mount the same disk there\n"), err
    code, out, err = answer(order(tmp_path, release="old").model_dump_json() + "\n")
    assert (code, out) == (2, "") and release() in err and "install the same everywhere" in err, err
    code, out, err = answer('{"of": "tomorrow"}\n')
    assert (code, out, len(err.splitlines())) == (2, "", 1) and "another version" in err, err
    code, out, err = answer(order(tmp_path, endpoint="no.such.host.invalid").model_dump_json() + "\n")
    assert (code, out) == (2, "") and "set launch.endpoint to an address" in err, err


def test_a_silent_connection_ends_the_remote_agent_with_all_that_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    forever = tmp_path / "forever.py"
    forever.write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, print)\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-m", "gpt2train.launch.ssh_agent"]
    for seconds in (2.0, 60.0):  # the longer one if this process was stopped, and its heartbeats came too late
        what = order(tmp_path, arguments=("--nproc-per-node", "1", str(forever)), peer_timeout=seconds)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as far:
            assert far.stdin is not None and far.stdout is not None
            # Two heartbeats, while others are waited for.
            far.stdin.write(f"{what.model_dump_json()}\n\n\n{GO}\n".encode())
            assert far.stdout.readline() == f"{READY}\n".encode()
            while not select.select([far.stdout], [], [], 0.2)[0]:  # until it began, or ended
                with contextlib.suppress(BrokenPipeError):
                    far.stdin.write(b"\n")
            if began := far.stdout.readline():
                child = psutil.Process(int(began))
                assert far.wait(120) != 0  # standard input is open all the time
                wait_until_ended([child])
                return
    raise AssertionError("no rank was started")


SSHD = "/usr/sbin/sshd"
MARK = "GPT2TRAIN_TEST_MARK"
SECONDS = 240.0


@dataclass
class TwoHosts:
    """The first machine, from which jobs are started.

    Attributes:
        mark: in the environment of all that runs on the two machines.
    """

    networks: list[str]
    folder: Path
    mark: str
    launch: LaunchSettings

    def start(self, config: RunConfig) -> "subprocess.Popen[bytes]":
        settings = self.folder / "launch.json"
        settings.write_text(self.launch.model_dump_json())
        module = ["-m", "tests.tasks.train.launch.start_job"]
        command = [sys.executable, *module, f"{config.output}/config.toml", str(settings)]
        with (self.folder / "job.log").open("w") as log:
            inside = ["ip", "netns", "exec", self.networks[0], *command]
            # As in a process that took part in a job of one machine; the launcher passes GLOO_* on to all machines.
            env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return subprocess.Popen(inside, cwd=ROOT, env=env, **streams)

    def said(self) -> str:
        return (self.folder / "job.log").read_text()

    def running(self) -> list[psutil.Process]:
        marked = [p for p in psutil.process_iter() if environment_of(p).get(MARK) == self.mark]
        return [process for process in marked if not has_ended(process)]

    def wait_for(self, condition: object, job: "subprocess.Popen[bytes]", what: str) -> None:
        assert callable(condition)

        def there() -> object:
            assert job.poll() is None, self.said()
            return condition()

        try:
            wait_for(there, SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from error


@pytest.fixture
def hosts(networks: list[str], tmp_path: Path) -> Iterator[TwoHosts]:
    if not Path(SSHD).exists() or not shutil.which("ssh"):
        pytest.skip("needs openssh-server and openssh-client")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    lines = ["Port 2222", f"HostKey {tmp_path}/host", f"AuthorizedKeysFile {tmp_path}/user.pub", "StrictModes no"]
    lines += ["PermitRootLogin yes", "UsePAM no", "PidFile none", f'SetEnv {MARK}={mark} "PYTHONPATH={path}"']
    (tmp_path / "sshd_config").write_text("\n".join(lines) + "\n")
    known = f"IdentityFile {tmp_path}/user\nUserKnownHostsFile {tmp_path}/known\nStrictHostKeyChecking accept-new\n"
    hosts = "".join(f"Host gpu{n}\n HostName 10.99.0.{n}\n Port 2222\n" for n in (1, 2))
    (tmp_path / "ssh_config").write_text(f"{hosts}Host *\n{known}")
    alive = "-o BatchMode=yes -o ConnectTimeout=5 -o ServerAliveInterval=2 -o ServerAliveCountMax=2"
    how = {"launcher": "ssh", "hosts": ("gpu1", "gpu2"), "endpoint": "10.99.0.1:29500", "processes": 2, "restarts": 1}
    ssh = {"command": f"ssh -F {tmp_path}/ssh_config {alive} {{host}}", "peer_timeout": 10}
    launch = build(LaunchSettings, how, {"shutdown_timeout": 20, "ssh": ssh})
    with contextlib.ExitStack() as stack:
        for name in networks:
            command = ["ip", "netns", "exec", name, SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")]
            with (tmp_path / "sshd.log").open("a") as log:
                daemon = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(daemon.kill)
        found = TwoHosts(networks, tmp_path, mark, launch)
        yield found
        for process in found.running():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def prepare(config: RunConfig) -> RunConfig:
    Path(config.output).mkdir()
    Path(config.output, "config.toml").write_text(to_toml(config))
    return config


def steps(config: RunConfig) -> int:
    rows = read_metrics(config.output)
    return int(rows[-1]["step"]) if rows else 0


@pytest.mark.exhaustive
def test_a_job_on_two_machines_survives_a_network_cut_and_leaves_nothing(hosts: TwoHosts) -> None:
    tokens = write_tokens(hosts.folder)
    checkpoints = {"interval": 10, "keep": 2}
    cut, twin = (
        prepare(make(tokens, hosts.folder / name, steps=1_000_000, checkpoints=checkpoints)) for name in ("cut", "twin")
    )

    job = hosts.start(cut)
    hosts.wait_for(lambda: steps(cut) > 15 and list_checkpoints(cut.output), job, "a checkpoint")
    assert ip("-n", hosts.networks[1], "link", "set", "cable", "down")
    hosts.wait_for(
        lambda: "warning: gpu2 was lost while the job ran; all hosts restart" in hosts.said(), job, "the cut's notice"
    )
    assert ip("-n", hosts.networks[1], "link", "set", "cable", "up")
    log = Path(cut.output, "logs", "rank-0.log")
    hosts.wait_for(lambda: "resuming from step" in log.read_text(), job, "the restart")
    began = steps(cut)
    hosts.wait_for(lambda: steps(cut) > began + 5, job, "more steps")

    job.terminate()  # `ip netns exec` became the job itself
    assert job.wait(SECONDS) == 99, hosts.said()
    assert not hosts.running()
    saved = verify(newest_checkpoint(cut.output)).position.step
    assert saved == steps(cut) > 15
    assert not list(Path(cut.output).glob(".shared-*"))

    job = hosts.start(cut)
    hosts.wait_for(lambda: steps(cut) > saved + 5, job, "steps of the second job")
    theirs = hosts.running()
    assert len([process for process in theirs if "RANK" in environment_of(process)]) == 4
    job.kill()  # no message is sent: the remote agents see their standard input close
    job.wait()
    wait_until_ended(theirs, 60)
    assert not hosts.running()
    assert verify(newest_checkpoint(cut.output)).position.step == steps(cut)  # and they have saved

    straight = start("-m", "gpt2train.train", "--config", f"{twin.output}/config.toml", processes=4)
    while straight.poll() is None and steps(twin) < steps(cut):
        time.sleep(0.05)
    straight.terminate()
    assert finish(straight)[0] == 0
    for key in ("step", "loss", "grad_norm"):
        assert curve(cut.output, key) == curve(twin.output, key)[: steps(cut)], key
