"""Remote shells, one a host: their lines in one queue, signs of life to each, and an end that leaves none of them."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

BEATS = 4  # signs of life within the time after which silence counts as a loss
LEEWAY = 5.0  # seconds beyond the grace in which the far end kills what is left there


class Connection:
    """A remote shell that runs a command on a host.

    Attributes:
        name: of the host.
        code: its exit code, once it has ended.
    """

    def __init__(self, name: str, command: Sequence[str], events: "queue.Queue[tuple[Connection, str | None]]") -> None:
        self.name = name
        self.code: int | None = None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,  # Ctrl-C is ours to pass on: ssh would end before the ranks have saved
        )
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: "queue.Queue[tuple[Connection, str | None]]") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events.put((self, line.rstrip()))
        self._process.wait()
        events.put((self, None))

    def send(self, line: str) -> None:
        """Send a line; whether it arrives is not known."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{line}\n")

    def hang_up(self) -> None:
        """Let the other side end: it sees the end of its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End the remote shell at once; the far end notices."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def settle(self) -> None:
        """Take up the exit code."""
        self.code = self._process.wait()

    @property
    def lost(self) -> bool:
        """Whether the shell itself failed, and not what it ran: ssh has 255 for that."""
        return self.code is not None and (self.code == 255 or self.code < 0)


class Connections:
    """Remote shells to all hosts of a job, ended together: hung up, `grace` seconds to save, killed.

    Args:
        commands: by the name of the host, in order.
        patience: seconds after which the far ends take silence for a loss.

    Attributes:
        grace: seconds that they have to save, once there is something to save.
    """

    def __init__(self, commands: dict[str, list[str]], patience: float) -> None:
        self.commands, self.patience, self.grace = commands, patience, 0.0
        self.hosts: list[Connection] = []
        self._events: queue.Queue[tuple[Connection, str | None]] = queue.Queue()
        self._beaten = time.monotonic()

    def __enter__(self) -> Self:
        try:
            for name, command in self.commands.items():
                self.hosts.append(Connection(name, command, self._events))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    @property
    def open(self) -> list[Connection]:
        """Those that have not ended."""
        return [host for host in self.hosts if host.code is None]

    def event(self, seconds: float) -> tuple[Connection, str | None] | None:
        """What comes next within so many seconds: a line of a host, or None for its end. Sends signs of life."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now - self._beaten >= self.patience / BEATS:
                self._beaten = now
                for host in self.open:
                    host.send("")
            try:
                host, line = self._events.get(timeout=max(0.0, min(until - now, self.patience / BEATS)))
            except queue.Empty:
                if time.monotonic() >= until:
                    return None
                continue
            if line is None:
                host.settle()
            return host, line

    def end(self) -> list[tuple[Connection, str]]:
        """End all that are open; what they said meanwhile."""
        words = []
        for host in self.open:
            host.hang_up()
        until = time.monotonic() + self.grace + LEEWAY
        while self.open and (left := until - time.monotonic()) > 0:
            if (found := self.event(left)) and found[1] is not None:
                words.append((found[0], found[1]))
        for host in self.open:
            host.kill()
            host.settle()
        return words

    def __iter__(self) -> Iterator[Connection]:
        return iter(self.hosts)
