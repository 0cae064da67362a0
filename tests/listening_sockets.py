"""Sockets that accept traffic from other machines, found in a process and all of its descendants."""

import contextlib
import ipaddress
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator

import psutil

SAMPLE_SECONDS = 0.1
RENAMED = """
import os, socket, sys
socket.sethostname(sys.argv[1])
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def open_sockets(root: psutil.Process) -> dict[tuple[str, int], str]:
    """The owner's command for each TCP listener and unconnected UDP socket of a process tree, by (address, port)."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                for one in process.net_connections("inet"):
                    unconnected = one.type == socket.SOCK_DGRAM and not one.raddr
                    if one.laddr and (one.status == psutil.CONN_LISTEN or unconnected):
                        found[one.laddr.ip, one.laddr.port] = " ".join(process.cmdline())
    return found


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


class Sampler:
    """Every socket that was open in a process tree at any sample.

    Attributes:
        found: the commands that owned it, by (address, port); one may hand it to another.
        samples: number of samples of the process tree so far.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self.found: dict[tuple[str, int], str] = {}
        self.samples = 0
        self._seconds = seconds
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.is_set():
            for address, command in open_sockets(self._root).items():
                before = self.found.get(address, "")
                self.found[address] = before if command in before else f"{before}\n{command}".strip()
            self.samples += 1
            time.sleep(self._seconds)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def outside(self) -> dict[tuple[str, int], str]:
        return {address: command for address, command in self.found.items() if not is_loopback(address[0])}


@contextlib.contextmanager
def sampled(pid: int, seconds: float = SAMPLE_SECONDS) -> Iterator[Sampler]:
    """Sample the sockets of a process tree for the duration of the block. A sample of ten processes takes 20 ms."""
    sampler = Sampler(pid, seconds)
    try:
        yield sampler
    finally:
        sampler.stop()


def network_address() -> str | None:
    """An IPv4 address of this machine by which others reach it."""
    found = [one for addresses in psutil.net_if_addrs().values() for one in addresses]
    return next((one.address for one in found if one.family == socket.AF_INET and not is_loopback(one.address)), None)


def renamed_python(*words: str) -> list[str]:
    """Command of Python on a machine whose host name resolves to its network address, where that is possible."""
    address = network_address()
    if os.geteuid() or not shutil.which("unshare") or address is None:
        return [sys.executable, *words]
    return ["unshare", "--uts", sys.executable, "-c", RENAMED, address, *words]
