"""Remote agent of the ssh launcher: runs the ranks of a training job that another machine starts.

    ssh gpu02 'cd FOLDER && exec python -m gpt2train.launch.ssh_agent'

It reads one line of JSON (`RemoteJobRequest`) with all parameters from standard input, so that no shell has to quote
them and no process list shows them. It checks the request (same release, same disk), answers `READY`, waits for `go`,
and then acts as `gpt2train.launch`. Each further line on standard input is a heartbeat. When standard input closes, or
no heartbeat arrives for `peer_timeout` seconds, the ranks get SIGTERM, save and exit; after `shutdown_timeout` seconds
all are killed. So no process remains here, whatever happens on the starting machine.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import filelock
from pydantic import Field, ValidationError

from gpt2train.errors import UserError
from gpt2train.launch.exit_codes import LOST_CONTACT, USER_ERROR
from gpt2train.launch.network_interfaces import forget_loopback, use_interface_of
from gpt2train.settings import Record
from gpt2train.store.files import private_folder
from gpt2train.store.process import end_with_descendants, signal_after

READY = "gpt2train: ready"
GO = "go"
REQUEST_SECONDS = 60.0  # timeout of the request
POLL_SECONDS = 5.0  # interval of the message while an earlier job is still running


class RemoteJobRequest(Record):
    """Request to run the ranks of one machine."""

    release: str  # `release()` of the requesting machine: ranks with different code would not train the same model
    run: str  # run folder
    token: str  # name of a file just created in the run folder, to check that this machine has the same disk
    node: str  # name of this machine on the requesting machine
    arguments: tuple[str, ...]  # arguments of torchrun
    endpoint: str | None = None  # host of the rendezvous
    environment: dict[str, str] = {}  # environment variables to set
    peer_timeout: float = Field(gt=0)  # seconds without a heartbeat until the connection counts as lost
    shutdown_timeout: float = Field(gt=0)  # seconds that the ranks have to save before they are killed


@cache
def release() -> str:
    """Version that must be equal on all machines: hash of the engine's source, and version of torch."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"{digest.hexdigest()[:12]} with torch {importlib.metadata.version('torch')}"


def main() -> int:
    """Read the request, check it, answer and run it. Return the exit code."""
    connection = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit standard input and must not read or keep it open
    try:
        with contextlib.ExitStack() as stack:
            request = _read_request(connection)
            os.environ.update(request.environment)
            stack.enter_context(_lock_machine(request, connection))
            local = _check(request)
            print(READY, flush=True)
            while not (line := _line(connection, request.peer_timeout)).strip() and line:
                pass  # heartbeats while other machines get ready
            if line.strip() != GO:
                return 0
            lost = partial(_wait_for_loss, connection, request.peer_timeout)
            signal_after(lost, signal.SIGTERM, report=partial(_end_after, request.shutdown_timeout))
            from gpt2train.launch import torchrun

            return torchrun.main(["--lost", str(LOST_CONTACT), "--", *local, *request.arguments])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return USER_ERROR


def _read_request(connection: int) -> RemoteJobRequest:
    try:
        return RemoteJobRequest.model_validate_json(_line(connection, REQUEST_SECONDS))
    except ValidationError as error:
        raise UserError(f"gpt2train has another version here ({release()}); install the same everywhere") from error


def _line(connection: int, seconds: float | None) -> str:
    """Read the next line, with its newline; empty if the other side has disconnected or timed out."""
    line = b""
    while select.select([connection], [], [], seconds)[0] and (byte := os.read(connection, 1)):
        line += byte
        if byte == b"\n":
            break
    return line.decode(errors="replace")


@contextlib.contextmanager
def _lock_machine(request: RemoteJobRequest, connection: int) -> Iterator[None]:
    """Wait until an earlier job of this run has ended here: a disconnected one needs time to notice it."""
    name = hashlib.sha256(f"{Path(request.run).absolute()}\0{request.node}".encode()).hexdigest()[:16]
    lock = filelock.FileLock(private_folder() / f"{name}.lock")
    end = time.monotonic() + request.peer_timeout + request.shutdown_timeout + 2 * POLL_SECONDS
    while True:
        try:
            held = lock.acquire(timeout=POLL_SECONDS)
            break
        except filelock.Timeout:
            if time.monotonic() > end:
                raise UserError(f"another job trains {request.run} on this machine; wait for it, or stop it") from None
            if select.select([connection], [], [], 0)[0] and not os.read(connection, 1):
                raise UserError("the requesting machine has disconnected") from None
            print("waiting until an earlier job of this run has ended here", flush=True)
    with held:
        yield


def _check(request: RemoteJobRequest) -> list[str]:
    """Check that this machine can run the request, and return torchrun's arguments for its network address.

    Raises:
        UserError: another release, another disk, or no route to the endpoint.
    """
    if request.release != release():
        raise UserError(
            f"gpt2train is {release()} here, but {request.release} where the job started; install the same everywhere"
        )
    if not Path(request.run, request.token).exists():
        raise UserError(f"{request.run} is not the run folder of the other machines; mount the same disk there")
    if request.endpoint is None:
        return []
    address = _address_towards(request.endpoint)
    if address.startswith("127.") or address == "::1":  # own name in /etc/hosts: torch uses the name
        return []
    forget_loopback(os.environ)
    use_interface_of(address, os.environ)
    return ["--local-addr", address]


def _address_towards(host: str) -> str:
    """Address of this machine in the network of the rendezvous host, found without sending anything."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"no route to {host}, the host of the rendezvous ({error.strerror}); set launch.endpoint to an address and "
            "port that all machines reach"
        ) from error


def _end_after(seconds: float) -> None:
    """End this machine's part of the job after the time that its ranks have to save."""
    time.sleep(seconds)
    end_with_descendants(128 + signal.SIGTERM)


def _wait_for_loss(connection: int, seconds: float) -> None:
    """Return when the other side disconnects or sends no heartbeat in time."""
    while select.select([connection], [], [], seconds)[0] and os.read(connection, 4096):
        pass


if __name__ == "__main__":
    sys.exit(main())
