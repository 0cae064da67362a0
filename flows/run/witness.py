"""What outlives the process of a flow, to report a run whose process was killed, or whose end nobody heard.

Prefect's process worker that is asked to stop (Ctrl-C, SIGTERM: systemd, a container) kills the flows it started with
SIGKILL and tells the server nothing, so that their runs count as running for ever [Prefect's issues 16746, 22528]. The
same goes for the kernel's OOM killer where it takes worker and flow, and for a run that ends while the server is away
or has no room on its disk. So each flow that a worker started has a witness: a process of a few MB that reads from a
pipe. A flow whose end the server knows says so; when the pipe closes without that word, the witness gives the worker
time to report the run, and then does it itself.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil

OVER = b"over"  # the flow's process ends by itself, and the server knows of it
UNHEARD = b"unheard"  # it ends by itself, and the server does not
WORKER_SECONDS = 30.0  # for a worker that is still there to report the run, with the exit code that only it knows
TELL_SECONDS = 600.0  # to reach the server
ASK_SECONDS = 5.0
LOOK_SECONDS = 1.0


def call_witness(run: str, attempt: int, worker: psutil.Process) -> None:
    """Start the witness of this process.

    Args:
        run: id of the flow run that this process works for.
        attempt: how often it has been started; what is started again is another's.
        worker: reports runs too, as long as it lives.
    """
    words = [run, str(attempt), str(worker.pid), repr(worker.create_time())]
    witness = subprocess.Popen(
        [sys.executable, "-m", "flows.run.witness", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # the worker's, which breaks with it
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals for the flow's process group are none of its business
    )
    atexit.register(_dismiss, witness, run)


def _dismiss(witness: "subprocess.Popen[bytes]", run: str) -> None:
    word = OVER if _is_known_to_end(run) else UNHEARD
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        witness.communicate(word, timeout=LOOK_SECONDS)


def _is_known_to_end(run: str) -> bool:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    from flows.run.holder import alive

    soon = {"timeout": ASK_SECONDS}
    with (
        contextlib.suppress(Exception),
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings=soon) as client,
    ):
        return not alive(client.read_flow_run(run))  # type: ignore[arg-type]  # text goes into the address
    return False  # the server is away, or cannot answer


def main(run: str, attempt: str, worker: str, since: str) -> None:
    """Wait for the end of the flow's process; report the run if nobody else does."""
    for number in (signal.SIGTERM, signal.SIGINT):  # systemd sends them to all that a service has started
        signal.signal(number, signal.SIG_IGN)
    process = f"process {os.getppid()} on {os.uname().nodename}"
    word = sys.stdin.buffer.read()
    if word == OVER:
        return
    cause = f"{process} ended, and the server did not hear how" if word == UNHEARD else f"{process} was killed"
    from prefect.client.orchestration import get_client  # 1 s, of those that have one

    from flows.run.holder import alive, report

    end, patience = time.monotonic() + TELL_SECONDS, time.monotonic() + WORKER_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # a server that is away comes back
            found = client.read_flow_run(run)  # type: ignore[arg-type]  # text goes into the address
            if not alive(found) or found.run_count != int(attempt):
                return
            if time.monotonic() > patience or not _lives(int(worker), float(since)):
                report(client, found, cause)
                return
        time.sleep(LOOK_SECONDS)


def _lives(pid: int, since: float) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
