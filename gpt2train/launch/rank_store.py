"""Key-value store of the ranks: rendezvous for each attempt, and detection of hung ranks.

All processes use one store. It can outlive an attempt: torchrun's agent keeps it, so that after a restart it contains
entries of dead processes, such as gloo's addresses. Therefore every attempt has its own prefix, chosen by rank 0. The
number of the attempt cannot be the prefix: each machine counts its own restarts, and the counts can differ.
"""

import contextlib
import errno
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch.distributed as dist

from gpt2train.errors import RunError, UserError
from gpt2train.launch import hang_report
from gpt2train.launch.process_env import ProcessEnv, is_loopback

POLL_SECONDS = 0.02  # interval at which rank 0 checks for ranks that have joined
STORE_TIMEOUT = timedelta(seconds=5)  # timeout of requests to the store after a failure
# After contact was lost, a rank waits this long for the others to report the same: their timeouts expire within the
# time of a step, and they notice a closed connection at once.
REPORT_SECONDS = 5.0


class _Attempt(NamedTuple):
    """Attempt that this process has joined, its own store, and the store of all attempts."""

    env: ProcessEnv
    shared: dist.Store
    store: dist.Store
    name: str


_attempt: _Attempt | None = None


def join(env: ProcessEnv, timeout: timedelta) -> dist.Store:
    """Wait for all ranks and return the store of this attempt.

    Raises:
        UserError: the port is taken.
        RunError: some ranks, or rank 0, did not join within the timeout.
    """
    global _attempt
    shared = _open_store(env, timeout)
    job = dist.PrefixStore(f"gpt2train/{env.job}", shared)
    name = _announce_attempt(job, env, timeout) if env.rank == 0 else _request_attempt(job, env, timeout)
    _attempt = _Attempt(env, shared, dist.PrefixStore(name, job), name)
    return _attempt.store


def answer_hangs() -> None:
    """Answer from a thread when another rank reports a hang. The process must end without waiting for threads."""
    if _attempt is None:
        return
    env = _attempt.env
    job = dist.PrefixStore(f"gpt2train/{env.job}", cast(Any, _attempt.shared).clone())
    hang_report.answer_hangs(dist.PrefixStore(_attempt.name, job), env.rank, polls=bool(env.store))


def publish_failure(state: hang_report.RankState, timed_out: bool) -> None:
    """Give the others the state of this process, whose collective failed; after a timeout, ask them for theirs."""
    if _attempt is None:
        return
    with contextlib.suppress(dist.DistError, RuntimeError):
        _attempt.shared.set_timeout(STORE_TIMEOUT)
        hang_report.publish(_attempt.store, _attempt.env.rank, state)
        if timed_out:
            hang_report.ask(_attempt.store, _attempt.env.world)


def states() -> list[hang_report.RankState]:
    """States of all ranks after a hang; none if the store is gone."""
    with contextlib.suppress(dist.DistError, RuntimeError, ValueError):
        if _attempt is not None:
            return hang_report.collect(_attempt.store, _attempt.env.world)
    return []


def hung_ranks(timed_out: bool) -> list[int] | None:
    """Ranks that do not report a lost contact; None on all processes but the one that must report them.

    The lowest rank that timed out, not one whose connection broke, reports. If a process died, none timed out: its
    connections broke, and the launcher noticed its end.
    """
    if _attempt is None:
        return None
    env, shared, store, _ = _attempt
    others = [rank for rank in range(env.world) if rank != env.rank]
    try:
        shared.set_timeout(STORE_TIMEOUT)
        store.set(f"lost/{env.rank}", "timeout" if timed_out else "broken")
        if not timed_out:
            return None
        end = time.monotonic() + REPORT_SECONDS
        while others and time.monotonic() < end:
            others = [rank for rank in others if not store.check([f"lost/{rank}"])]
            time.sleep(POLL_SECONDS)
        reported = sorted(set(range(env.rank)) - set(others))
        if any(store.get(f"lost/{rank}") == b"timeout" for rank in reported):
            return None
    except (dist.DistError, RuntimeError):
        return [0] if env.rank else others  # rank 0 or its machine hosts the store
    return others


def leave() -> None:
    """Sign off at the end of a successful job; the process that hosts the store waits for all others."""
    if _attempt is None:
        return
    env, shared, store, _ = _attempt
    with contextlib.suppress(dist.DistError, RuntimeError):
        shared.set_timeout(STORE_TIMEOUT)
        store.set(f"wake/{env.rank}", "end")
        store.set(f"left/{env.rank}", "")
        if env.hosts_store:
            store.wait([f"left/{rank}" for rank in range(env.world)], STORE_TIMEOUT)


def serve_store(host: str, port: int, timeout: timedelta, address: str | None = None) -> dist.TCPStore:
    """Open a store on a port of this machine, only on the address that the host name resolves to.

    torch by itself listens on all interfaces.

    The host is the name or address by which other machines reach this one; port 0 chooses a free one. `address` is that
    of this machine, for a host name that resolves to loopback here, as in Debian's /etc/hosts.

    Raises:
        UserError: the port is taken.
    """
    listener = _listener(host, port, address)
    bound, port = listener.getsockname()[:2]
    if bound in ("::", "0.0.0.0"):
        print(
            f"warning: {host} resolves to no network address of this machine, so port {port} is open on all "
            "interfaces; give --local-addr, and an address as the endpoint",
            flush=True,
        )
        bound = host
    descriptor = listener.detach()
    return dist.TCPStore(
        bound, port, None, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=descriptor
    )


def _listener(host: str, port: int, address: str | None) -> socket.socket:
    for family, bind_address in _bind_addresses(host, port, address):
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(bind_address)
            listener.listen(socket.SOMAXCONN)
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"port {port} of this machine is taken; set MASTER_PORT (with a launcher, the endpoint's port) to "
                    "a free one, the same for all processes"
                ) from error
    raise UserError(f"{host} is not an address of this machine, and no port can be opened; give another endpoint")


def _bind_addresses(
    host: str, port: int, address: str | None
) -> Iterator[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Yield addresses to listen on, in order of preference; all interfaces come last."""
    for name in filter(None, (host, address)):
        with contextlib.suppress(OSError):
            for family, _, _, _, bind_address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
                # If this machine's own name resolves to loopback here, other machines resolve it differently.
                if is_loopback(name) or not is_loopback(str(bind_address[0])):
                    yield family, bind_address
    if not is_loopback(host):
        yield socket.AF_INET6, ("::", port)
        yield socket.AF_INET, ("", port)


def _open_store(env: ProcessEnv, timeout: timedelta) -> dist.Store:
    if env.store:
        found = dist.FileStore(env.store, -1)
        found.set_timeout(timeout)
        return found
    try:
        if env.hosts_store:
            return serve_store(env.host, env.port, timeout)
        return dist.TCPStore(env.host, env.port, None, is_master=False, timeout=timeout, wait_for_workers=False)
    except dist.DistNetworkError as error:
        raise RunError(
            f"rank {env.rank} on {socket.gethostname()} cannot reach the rendezvous at {env.host}:{env.port}; is "
            "rank 0 running there, and does the firewall allow that port?"
        ) from error


def _announce_attempt(job: dist.Store, env: ProcessEnv, timeout: timedelta) -> str:
    """Choose the name of the attempt, and send it to every process that asks until all have confirmed it."""
    name = uuid.uuid4().hex
    missing = list(range(1, env.world))
    end = time.monotonic() + timeout.total_seconds()
    while True:
        for rank in missing:
            if job.check([f"ask/{rank}"]):  # from a process of this attempt, or a dead one, which does not confirm
                job.set(f"answer/{job.get(f'ask/{rank}').decode()}", name)
        missing = [rank for rank in missing if not job.check([f"{name}/here/{rank}"])]
        if not missing:
            return name
        if time.monotonic() > end:
            raise RunError(
                f"{ranks(missing)} of {env.world} did not join within {timeout.total_seconds():.0f} s; check that "
                "they were started and that their machines reach this one"
            )
        time.sleep(POLL_SECONDS)


def _request_attempt(job: dist.Store, env: ProcessEnv, timeout: timedelta) -> str:
    """Request the name of the attempt from rank 0, and confirm it."""
    request = uuid.uuid4().hex
    job.set(f"ask/{env.rank}", request)
    try:
        job.wait([f"answer/{request}"], timeout)
    except RuntimeError as error:  # a file store raises no DistStoreError
        if isinstance(error, dist.DistNetworkError):
            raise
        source = env.store or f"{env.host}:{env.port}"
        raise RunError(
            f"rank 0 did not join at {source} within {timeout.total_seconds():.0f} s; "
            f"rank {env.rank} on {socket.gethostname()} gives up"
        ) from error
    name = str(job.get(f"answer/{request}").decode())
    job.set(f"{name}/here/{env.rank}", "")
    return name


def ranks(numbers: list[int]) -> str:
    """Format rank numbers: `rank 3`, or `ranks 1, 2, 5 and 90 more`."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"
