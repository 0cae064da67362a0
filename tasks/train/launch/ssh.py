"""Launcher for several machines over ssh: one connection per host, with `gpt2train.launch.ssh_agent` on the host.

The loss of a host (power, network) ends the attempt on all others; if restarts are left, all hosts restart from the
last checkpoint as soon as the lost one answers. The loss of a rank is handled by torchrun, as on one machine.
"""

import contextlib
import fnmatch
import os
import re
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, field_validator

from gpt2train.errors import UserError
from gpt2train.launch.exit_codes import USER_ERROR
from gpt2train.launch.ssh_agent import GO, READY, RemoteJobRequest, release
from gpt2train.settings import Settings
from tasks.train.launch.common_settings import CommonLaunchSettings
from tasks.train.launch.job import LOST, Job, LogLineSink, torchrun_arguments
from tasks.train.launch.registry import Launcher, register_launcher
from tasks.train.launch.ssh_session import Connection, Connections

DRAIN_SECONDS = 5.0  # during which the other hosts' output is read after one has failed
RETRY_SECONDS = 5.0
PEER_LOST = re.compile("lost contact with another process|lost each other")  # printed by the peers of a failed process
USER_MISTAKES = re.compile("Permission denied|Host key verification failed|Name or service not known|Bad .* option")


class SshSettings(Settings):
    """Settings of the ssh launcher: the remote shell, and the installation on the hosts."""

    command: str = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3 {host}"
    """Command that runs a shell line on {host}; the line is appended as its last argument. Your ssh configuration
    (~/.ssh/config: user, port, key, jump host) applies."""
    python: str | None = None
    """Path of Python on the hosts. None: the same as on this machine."""
    folder: str | None = None
    """Working folder on the hosts: the checkout if gpt2train is not installed. None: the same as on this machine."""
    variables: tuple[str, ...] = ("NCCL_*", "GLOO_*", "TORCH_*", "PYTORCH_*", "CUDA_DEVICE_ORDER")
    """Names of environment variables that are passed on to the ranks; * matches any characters."""
    peer_timeout: float = Field(60.0, ge=1, le=604_800)
    """Seconds without a heartbeat after which a host counts as lost, and for the host this machine."""
    wait: float = Field(600.0, ge=0, le=604_800)
    """Seconds that a restart (`launch.restarts`) waits for a lost host."""

    @field_validator("command")
    @classmethod
    def _names_the_host(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{error}; quote it as a shell requires") from error
        if not any("{host}" in word for word in words):
            raise ValueError("the command must contain {host}, as in 'ssh {host}'")
        return value


class HostLostError(Exception):
    """A host does not answer or no longer answers."""


class RefusedError(Exception):
    """A host cannot run the job because of a user's mistake."""


def run_ssh(job: Job, on_line: LogLineSink) -> int:
    """Run the job on `launch.hosts` to its end and return its exit code. See `registry.Launcher`."""
    launch, ssh = job.settings, job.settings.group(SshSettings)
    restarts, since = 0, 0.0
    while True:
        running, after = False, list[str]()
        try:
            with _token(job.run) as token, _connections(job) as hosts:
                try:
                    _handshake(hosts, job, token, on_line)
                    running = True
                    return _follow(hosts, job, on_line)
                finally:
                    after += [_with_host(host, line, job) for host, line in hosts.end()]
        except RefusedError as error:
            on_line(f"error: {error}")
            return USER_ERROR
        except HostLostError as error:
            if running:
                restarts, since = restarts + 1, time.monotonic()
            if not 0 < restarts <= launch.restarts or time.monotonic() - since > ssh.wait:
                on_line(f"error: {error}")
                return LOST
            again = f"all hosts restart: restart {restarts} of {launch.restarts}"
            on_line(f"warning: {error}; {again if running else 'trying again'}")
        finally:
            for line in after:  # after the line with the cause
                on_line(line)
        time.sleep(RETRY_SECONDS)


def check_ssh(settings: CommonLaunchSettings, output: str) -> None:
    """Check that the remote shell is installed.

    Raises:
        UserError: The command is not found.
    """
    shell = shlex.split(settings.group(SshSettings).command)[0]
    if shutil.which(shell) is None:
        raise UserError(f"launch.ssh.command starts with {shell}, which is not here; install it, or set another")


def _connections(job: Job) -> Connections:
    ssh = job.settings.group(SshSettings)
    python, folder = ssh.python or sys.executable, ssh.folder or str(Path.cwd())
    line = f"cd {shlex.quote(folder)} && exec {shlex.quote(python)} -u -m gpt2train.launch.ssh_agent"
    template = shlex.split(ssh.command)
    commands = {host: [*(word.replace("{host}", host) for word in template), line] for host in job.settings.hosts}
    return Connections(commands, ssh.peer_timeout)


def _request(job: Job, host: str, token: str) -> RemoteJobRequest:
    launch, ssh = job.settings, job.settings.group(SshSettings)
    variables = {name: os.environ[name] for pattern in ssh.variables for name in fnmatch.filter(os.environ, pattern)}
    return RemoteJobRequest(
        release=release(),
        run=str(job.run),
        token=token,
        node=host,
        arguments=tuple(torchrun_arguments(job)),
        endpoint=(launch.rdzv_endpoint or "").rpartition(":")[0] or None,
        environment={**variables, "OMP_NUM_THREADS": str(launch.threads), "PYTHONUNBUFFERED": "1"},
        peer_timeout=ssh.peer_timeout,
        shutdown_timeout=launch.shutdown_timeout,
    )


def _handshake(hosts: Connections, job: Job, token: str, on_line: LogLineSink) -> None:
    """Send each host its request, and start all hosts once all are ready.

    Raises:
        RefusedError: A host cannot run the job.
        HostLostError: A host does not answer.
    """
    timeout = job.settings.group(SshSettings).peer_timeout
    for host in hosts:
        host.send(_request(job, host.name, token).model_dump_json())
    due = {host: time.monotonic() + timeout for host in hosts}
    last_lines: dict[Connection, str] = {}
    while due:
        found = hosts.next_event(max(0.0, min(due.values()) - time.monotonic()))
        if found is None:
            late = min(due, key=lambda host: due[host])
            raise HostLostError(f"{late.name} did not answer within {timeout:.0f} s")
        host, line = found
        if line is None:
            _raise_not_ready(host, last_lines.get(host, ""), job)
        elif line == READY:
            due.pop(host)
        else:
            if host in last_lines:
                on_line(_with_host(host, last_lines[host], job))
            last_lines[host] = line  # held back: if it is the last line, it is the reason of the failure
            if host in due:
                due[host] = time.monotonic() + timeout
    hosts.shutdown_timeout = job.settings.shutdown_timeout
    for host in hosts:
        host.send(GO)


def _raise_not_ready(host: Connection, reason: str, job: Job) -> None:
    """Raise the error of a host that ended before it was ready; `reason` is its last line."""
    reason = reason.removeprefix("error: ")
    ssh = job.settings.group(SshSettings)
    if host.lost:
        shell = shlex.split(ssh.command.replace("{host}", host.name))
        hint = f"`{shlex.join([*shell, 'true'])}` must work without a password"
        kind = RefusedError if USER_MISTAKES.search(reason) else HostLostError
        raise kind(f"{host.name} cannot be reached ({reason or f'exit code {host.code}'}); {hint}")
    if host.code == USER_ERROR and "No module named" not in reason and not reason.startswith(("sh:", "bash:")):
        raise RefusedError(f"{host.name}: {reason}")
    raise RefusedError(
        f"{host.name} has no gpt2train of this release under {ssh.python or sys.executable} in "
        f"{ssh.folder or Path.cwd()} ({reason or f'exit code {host.code}'}); install it there, or set "
        "launch.ssh.python and launch.ssh.folder"
    )


def _follow(hosts: Connections, job: Job, on_line: LogLineSink) -> int:
    """Forward the hosts' lines until all have ended or one has failed, and return the exit code.

    Raises:
        HostLostError: A host no longer answers.
    """
    held: list[tuple[Connection, str]] = []  # consequences of another host's failure, forwarded after its cause
    until: float | None = None
    try:
        while hosts.open and (until is None or time.monotonic() < until):
            found = hosts.next_event(3600.0 if until is None else max(0.0, until - time.monotonic()))
            if found is None:
                continue
            host, line = found
            if line is not None:
                if PEER_LOST.search(line):
                    held.append((host, line))
                else:
                    on_line(_with_host(host, line, job))
            elif host.lost:
                raise HostLostError(f"{host.name} was lost while the job ran")
            elif host.code and until is None:
                until = time.monotonic() + DRAIN_SECONDS
    finally:
        for host, line in held:
            on_line(_with_host(host, line, job))
    codes = [host.code for host in hosts if host.code]
    # A host's own failure is the cause; the lost contact of the others is its consequence.
    return next((code for code in (USER_ERROR, 1) if code in codes), codes[0] if codes else 0)


def _with_host(host: Connection, line: str, job: Job) -> str:
    """Prefix a line with its host, except errors of the first host's ranks and those that name their rank and host.

    Those errors are in the ranks' logs with the same text, by which duplicates are dropped.
    """
    level = next((level for level in ("error: ", "warning: ") if line.startswith(level)), "")
    if level == "error: " and (host.name == job.settings.hosts[0] or re.match(r"error: rank \d+ on ", line)):
        return line
    return f"{level}{host.name}: {line.removeprefix(level)}"


@contextlib.contextmanager
def _token(run: Path) -> Iterator[str]:
    """Create a file in the run folder, by which the hosts check that they share its disk; yield its name."""
    name = f".shared-{uuid.uuid4().hex}"
    (run / name).touch()
    try:
        yield name
    finally:
        (run / name).unlink(missing_ok=True)


register_launcher("ssh", Launcher(run_ssh, check_ssh, SshSettings, on_hosts=True))
