"""Several machines by ssh: one connection each, `gpt2train.remote` at its far end, and all of them end together.

A machine that is lost (switched off, its network gone) ends the attempt on all others; with restarts left, all begin
again from the last checkpoint as soon as it answers. A lost rank is dealt with by torchrun, as on one machine.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from gpt2train.errors import UserError
from gpt2train.remote import GO, READY, Order, release
from tasks.launch.connection import Connection, Connections
from tasks.launch.job import LOST, USER_ERROR, Job, torchrun_arguments
from tasks.launch.settings import LaunchSettings

Tell = Callable[[str], None]
AFTERMATH_SECONDS = 5.0  # in which the others tell what they know, once one has failed
RETRY_SECONDS = 5.0
FOLLOWS = re.compile("lost contact with another process|lost each other")  # said by the others of a lost one
MISTAKES = re.compile("Permission denied|Host key verification failed|Name or service not known|Bad .* option")


class HostLostError(Exception):
    """A host does not answer, or no longer does."""


class RefusedError(Exception):
    """A host cannot take part, by a mistake of the user."""


def run_ssh(job: Job, tell: Tell) -> int:
    """Run the job on `launch.hosts` to its end; the exit code. See `tasks.launch.Launcher`."""
    how = job.settings
    restarts, since = 0, 0.0
    while True:
        running, after = False, list[str]()
        try:
            with _token(job.run) as token, _connections(job) as hosts:
                try:
                    _greet(hosts, job, token, tell)
                    running = True
                    return _follow(hosts, job, tell)
                finally:
                    after += [_with_host(host, line, job) for host, line in hosts.end()]
        except RefusedError as error:
            tell(f"error: {error}")
            return USER_ERROR
        except HostLostError as error:
            if running:
                restarts, since = restarts + 1, time.monotonic()
            if not 0 < restarts <= how.restarts or time.monotonic() - since > how.ssh.wait:
                tell(f"error: {error}")
                return LOST
            again = f"all begin again from the last checkpoint: restart {restarts} of {how.restarts}"
            tell(f"warning: {error}; {again if running else 'it is tried again'}")
        finally:
            for line in after:  # below the cause
                tell(line)
        time.sleep(RETRY_SECONDS)


def check_ssh(how: LaunchSettings) -> None:
    """Find before anything starts that the remote shell is not there.

    Raises:
        UserError: it is not.
    """
    shell = shlex.split(how.ssh.command)[0]
    if shutil.which(shell) is None:
        raise UserError(
            f"launch.ssh.command starts with {shell}, which is not on this machine; install it, or set another"
        )


def _connections(job: Job) -> Connections:
    how = job.settings
    python, folder = how.ssh.python or sys.executable, how.ssh.folder or str(Path.cwd())
    line = f"cd {shlex.quote(folder)} && exec {shlex.quote(python)} -u -m gpt2train.remote"
    words = shlex.split(how.ssh.command)
    commands = {host: [*(word.replace("{host}", host) for word in words), line] for host in how.hosts}
    return Connections(commands, how.ssh.patience)


def _order(job: Job, host: str, token: str) -> Order:
    how = job.settings
    wanted = {name: value for name, value in os.environ.items() if _matches(name, how.ssh.variables)}
    return Order(
        release=release(),
        run=str(job.run),
        token=token,
        node=host,
        arguments=tuple(torchrun_arguments(job)),
        endpoint=(how.meeting_point or "").rpartition(":")[0] or None,
        environment={**wanted, "OMP_NUM_THREADS": str(how.threads), "PYTHONUNBUFFERED": "1"},
        patience=how.ssh.patience,
        grace=how.grace,
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _greet(hosts: Connections, job: Job, token: str, tell: Tell) -> None:
    """Give each host its order, and start all when all have said that they are ready.

    Raises:
        RefusedError: one cannot take part.
        HostLostError: one does not answer.
    """
    patience = job.settings.ssh.patience
    for host in hosts:
        host.send(_order(job, host.name, token).model_dump_json())
    due = {host: time.monotonic() + patience for host in hosts}
    words: dict[Connection, str] = {}
    while due:
        found = hosts.event(max(0.0, min(due.values()) - time.monotonic()))
        if found is None:
            late = min(due, key=lambda host: due[host])
            raise HostLostError(f"{late.name} did not answer within {patience:.0f} s")
        host, line = found
        if line is None:
            _refuse(host, words.get(host, ""), job)
        elif line == READY:
            due.pop(host)
        else:
            if host in words:
                tell(_with_host(host, words[host], job))
            words[host] = line  # kept back: should it be the last, it is the reason
            if host in due:
                due[host] = time.monotonic() + patience
    hosts.grace = job.settings.grace
    for host in hosts:
        host.send(GO)


def _refuse(host: Connection, said: str, job: Job) -> None:
    """Say why a host ended before it was ready; `said` is its last line."""
    said = said.removeprefix("error: ")
    how = job.settings.ssh
    if host.lost:
        shell = shlex.split(how.command.replace("{host}", host.name))
        hint = f"`{shlex.join([*shell, 'true'])}` must work without a password"
        kind = RefusedError if MISTAKES.search(said) else HostLostError
        raise kind(f"{host.name} cannot be reached ({said or f'exit code {host.code}'}); {hint}")
    if host.code == USER_ERROR and "No module named" not in said and not said.startswith(("sh:", "bash:")):
        raise RefusedError(f"{host.name}: {said}")
    raise RefusedError(
        f"{host.name} has no gpt2train of this release under {how.python or sys.executable} in "
        f"{how.folder or Path.cwd()} ({said or f'exit code {host.code}'}); install it there, or set launch.ssh.python "
        "and launch.ssh.folder"
    )


def _follow(hosts: Connections, job: Job, tell: Tell) -> int:
    """Pass on what the hosts say until all have ended, or one has failed; the exit code.

    Raises:
        HostLostError: one does not answer any more.
    """
    held: list[tuple[Connection, str]] = []  # what only follows from another's failure is told after its cause
    until: float | None = None
    try:
        while hosts.open and (until is None or time.monotonic() < until):
            found = hosts.event(3600.0 if until is None else max(0.0, until - time.monotonic()))
            if found is None:
                continue
            host, line = found
            if line is not None:
                if FOLLOWS.search(line):
                    held.append((host, line))
                else:
                    tell(_with_host(host, line, job))
            elif host.lost:
                raise HostLostError(f"{host.name} was lost while the job ran")
            elif host.code and until is None:
                until = time.monotonic() + AFTERMATH_SECONDS
    finally:
        for host, line in held:
            tell(_with_host(host, line, job))
    codes = [host.code for host in hosts if host.code]
    # That a machine failed by itself is the cause, and that others lost it follows.
    return next((code for code in (USER_ERROR, 1) if code in codes), codes[0] if codes else 0)


def _with_host(host: Connection, line: str, job: Job) -> str:
    """The line with its host's name; errors of the first machine's ranks, and those with a name, stay as they are.

    Those are in the ranks' logs as well, by the same words, and are told once.
    """
    level = next((level for level in ("error: ", "warning: ") if line.startswith(level)), "")
    if level == "error: " and (host.name == job.settings.hosts[0] or re.match(r"error: rank \d+ on ", line)):
        return line
    return f"{level}{host.name}: {line.removeprefix(level)}"


@contextlib.contextmanager
def _token(run: Path) -> Iterator[str]:
    """A file in the run folder, by which the others see that theirs is the same disk."""
    name = f".shared-{uuid.uuid4().hex}"
    (run / name).touch()
    try:
        yield name
    finally:
        (run / name).unlink(missing_ok=True)
