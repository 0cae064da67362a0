"""The remote agent of the ssh launcher: refusals before the start, and its end; a local shell is the remote shell."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.launch.ssh_agent import GO, READY, RemoteJobRequest, release
from gpt2train.settings import build
from tasks.train.launch.job import LOST, Job, torchrun_arguments
from tasks.train.launch.launchers import LaunchSettings, check_launcher
from tasks.train.launch.ssh import run_ssh

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
    """Exit code and output of the remote agent for an input."""
    command = [sys.executable, "-m", "gpt2train.launch.ssh_agent"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"launcher": "ssh"}, "require each other"),
        ({"hosts": ["a"]}, "require each other"),
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
    with pytest.raises(UserError, match="starts with no-such-shell, which is not on this machine"):
        check_launcher(how, "out")


def test_the_first_host_is_the_rendezvous() -> None:
    launch = build(LaunchSettings, {"launcher": "ssh", "hosts": ["me@gpu01", "gpu02"], "processes": 8})
    assert launch.world == 16
    assert torchrun_arguments(Job("/run/config.toml", launch))[:6] == [
        *("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu01:29500")
    ]


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


def test_a_silent_connection_ends_the_remote_agent(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    forever = tmp_path / "forever.py"
    forever.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, print)\nprint('on', flush=True)\ntime.sleep(600)"
    )
    what = order(tmp_path, arguments=("--nproc-per-node", "1", str(forever)), peer_timeout=2.0)
    command = [sys.executable, "-m", "gpt2train.launch.ssh_agent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as far:
        assert far.stdin is not None and far.stdout is not None
        far.stdin.write(f"{what.model_dump_json()}\n\n\n{GO}\n")  # two heartbeats, while others are waited for
        far.stdin.flush()
        assert far.stdout.readline() == f"{READY}\n"
        assert far.wait(120) != 0  # it began, and standard input is open all the time
