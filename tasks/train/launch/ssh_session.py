"""Remote shells, one per host: a common queue of their lines, heartbeats, and a joint shutdown."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

HEARTBEATS_PER_TIMEOUT = 4  # heartbeats within the time after which silence counts as a loss
KILL_MARGIN_SECONDS = 5.0  # after the shutdown timeout, in which the agent kills the remaining processes of its host


class Connection:
    """A remote shell that runs a command on the host `name`; `code` is its exit code, None while it runs."""

    def __init__(self, name: str, command: Sequence[str], events: "Events") -> None:
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
            start_new_session=True,  # Ctrl-C must not reach ssh, which would end before the ranks have saved
        )
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: "Events") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events.put((self, line.rstrip()))
        self._process.wait()
        events.put((self, None))

    def send(self, line: str) -> None:
        """Send a line, without confirmation."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{line}\n")

    def close_stdin(self) -> None:
        """Ask the remote agent to end: it reads the end of its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the local ssh process; the remote agent notices."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the shell to end and record its exit code."""
        self.code = self._process.wait()

    @property
    def lost(self) -> bool:
        """True if the remote shell itself failed (ssh exits with 255), not the command that it ran."""
        return self.code is not None and (self.code == 255 or self.code < 0)


Events = queue.Queue[tuple[Connection, str | None]]


class Connections:
    """Remote shells to all hosts of a job, by name, ended together: stdin closed, `shutdown_timeout` to save, killed.

    The remote agents take a silence of `peer_timeout` seconds for a loss. `shutdown_timeout` is 0 before the ranks
    start.
    """

    def __init__(self, commands: dict[str, list[str]], peer_timeout: float) -> None:
        self.commands, self.peer_timeout, self.shutdown_timeout = commands, peer_timeout, 0.0
        self.hosts: list[Connection] = []
        self._events: Events = queue.Queue()
        self._last_heartbeat = time.monotonic()

    def __enter__(self) -> Self:
        try:
            for name, command in self.commands.items():
                self.hosts.append(Connection(name, command, self._events))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def open(self) -> list[Connection]:
        """Connections that have not ended."""
        return [host for host in self.hosts if host.code is None]

    def next_event(self, seconds: float) -> tuple[Connection, str | None] | None:
        """Wait at most so many seconds for the next line of any host, and send heartbeats meanwhile.

        Returns:
            The connection and its line, or None instead of a line if it has ended; None after the time.
        """
        until, interval = time.monotonic() + seconds, self.peer_timeout / HEARTBEATS_PER_TIMEOUT
        while True:
            now = time.monotonic()
            if now - self._last_heartbeat >= interval:
                self._last_heartbeat = now
                for host in self.open:
                    host.send("")
            try:
                host, line = self._events.get(timeout=max(0.0, min(until - now, interval)))
            except queue.Empty:
                if time.monotonic() >= until:
                    return None
                continue
            if line is None:
                host.reap()
            return host, line

    def end(self) -> list[tuple[Connection, str]]:
        """End all open connections and return the lines that they print meanwhile."""
        lines = []
        for host in self.open:
            host.close_stdin()
        until = time.monotonic() + self.shutdown_timeout + KILL_MARGIN_SECONDS
        while self.open and (left := until - time.monotonic()) > 0:
            if (found := self.next_event(left)) and found[1] is not None:
                lines.append((found[0], found[1]))
        for host in self.open:
            host.kill()
            host.reap()
        return lines

    def __iter__(self) -> Iterator[Connection]:
        return iter(self.hosts)
