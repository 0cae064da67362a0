"""The far end of a training that another machine started through a remote shell: what runs there, and when it ends.

    ssh gpu02 'cd FOLDER && exec python -m gpt2train.remote'

Over standard input comes one line of JSON (`Order`), which names everything, so that no shell has to quote it and no
list of processes shows it. This end looks whether it can do it (the same release, the same disk), answers `READY`,
waits for `go`, and is `gpt2train.launch` from then on. Each further line on standard input is a sign of life. When it
closes, or stays silent for `patience`, the one who ordered is gone or wants an end: the ranks get SIGTERM, save and
end; after `grace` seconds all is killed. So nothing is left here, whatever happened there or on the way.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import filelock
import psutil
from pydantic import Field, ValidationError

from gpt2train.errors import UserError
from gpt2train.lifeline import LOST_CONTACT
from gpt2train.settings import Settings

READY = "gpt2train: ready"
GO = "go"
USER_ERROR = 2
FIRST_WORD = 60.0  # seconds until the order must have come
LOOK_SECONDS = 5.0  # how often one waits aloud for an earlier job


class Order(Settings):
    """What is to run here."""

    release: str
    """`release()` of the one who orders: ranks of different code would not train the same model."""
    run: str
    """The run folder."""
    token: str
    """Name of a file that was made there just now; it is not here when the disk is another one."""
    node: str
    """What this machine is called by the one who orders."""
    arguments: tuple[str, ...]
    """torchrun's."""
    endpoint: str | None = None
    """Host where all machines meet."""
    environment: dict[str, str] = {}
    """Variables to set."""
    patience: float = Field(gt=0)
    """Seconds without a sign of life until the connection counts as lost."""
    grace: float = Field(gt=0)
    """Seconds that the ranks have to save when they are to end."""


@cache
def release() -> str:
    """What must be the same on all machines: the engine's source, and torch."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"{digest.hexdigest()[:12]} with torch {importlib.metadata.version('torch')}"


def main() -> int:
    """Read the order, check it, answer, run it; the exit code."""
    wire = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks inherit standard input, and must not hold or read it
    try:
        with contextlib.ExitStack() as stack:
            order = _read_order(wire)
            stack.enter_context(_only_job_here(order, wire))
            local = _check(order)
            print(READY, flush=True)
            while not (word := _line(wire, order.patience)).strip() and word:
                pass  # signs of life, while others are waited for
            if word.strip() != GO:
                return 0
            threading.Thread(target=_watch, args=(wire, order), daemon=True).start()
            os.environ.update(order.environment)
            from gpt2train import launch

            return launch.main(["--lost", str(LOST_CONTACT), "--", *local, *order.arguments])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return USER_ERROR


def _read_order(wire: int) -> Order:
    try:
        return Order.model_validate_json(_line(wire, FIRST_WORD))
    except ValidationError as error:
        raise UserError(f"gpt2train is another release here ({release()}); install the same everywhere") from error


def _line(wire: int, seconds: float | None) -> str:
    """The next line, with its end; empty when the other side is gone or silent."""
    line = bytearray()
    while not line.endswith(b"\n") and select.select([wire], [], [], seconds)[0] and (byte := os.read(wire, 1)):
        line += byte
    return line.decode(errors="replace")


@contextlib.contextmanager
def _only_job_here(order: Order, wire: int) -> Iterator[None]:
    """Wait until an earlier job of this run has ended here: one that was cut off needs its time to notice."""
    folder = Path(tempfile.gettempdir()) / f"gpt2train-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to somebody else; remove it, or set TMPDIR")
    name = hashlib.sha256(f"{Path(order.run).absolute()}\0{order.node}".encode()).hexdigest()[:16]
    lock = filelock.FileLock(folder / f"{name}.lock")
    end = time.monotonic() + order.patience + order.grace + 2 * LOOK_SECONDS
    while True:
        try:
            lock.acquire(timeout=LOOK_SECONDS)
            break
        except filelock.Timeout:
            if time.monotonic() > end:
                raise UserError(f"another job trains {order.run} on this machine; wait for it, or stop it") from None
            if select.select([wire], [], [], 0)[0] and not os.read(wire, 1):
                raise UserError("the one who asked is gone") from None
            print("waiting until an earlier job of this run has ended here", flush=True)
    try:
        yield
    finally:
        lock.release()


def _check(order: Order) -> list[str]:
    """Whether this machine can take part; torchrun's arguments for its place in the network.

    Raises:
        UserError: it cannot.
    """
    if order.release != release():
        raise UserError(
            f"gpt2train here is {release()}, and where the job was started {order.release}; install the same everywhere"
        )
    if not Path(order.run, order.token).exists():
        raise UserError(f"{order.run} is not the run folder of the other machines; mount the same disk there")
    if order.endpoint is None:
        return []
    address = _address_towards(order.endpoint)
    if address.startswith("127.") or address == "::1":  # the machine's own name in /etc/hosts: torch goes by the name
        return []
    for device, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", device)
    return ["--local-addr", address]


def _address_towards(host: str) -> str:
    """This machine's address in the network in which the machines meet; nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"no way to {host}, where the machines are to meet ({error.strerror}); set launch.endpoint to an address "
            "and a port that each of them reaches"
        ) from error


def _watch(wire: int, order: Order) -> None:
    """End this process when the other side closes the wire or is silent for too long."""
    while select.select([wire], [], [], order.patience)[0] and os.read(wire, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(order.grace)
    os.kill(os.getpid(), signal.SIGKILL)  # the ranks end with their parent


if __name__ == "__main__":
    sys.exit(main())
