"""What outlives the process of a flow, to report a run whose process was killed.

Prefect's process worker that is asked to stop (Ctrl-C, SIGTERM: systemd, a container) kills the flows it started with
SIGKILL and tells the server nothing, so that their runs count as running for ever [Prefect's issues 16746, 22528]. The
same goes for the kernel's OOM killer where it takes worker and flow. So each flow that a worker started has a witness:
a process of a few MB that reads from a pipe. A flow that ends in any other way says so; when the pipe closes without a
word, the witness gives the worker time to report the run, and then does it itself.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil

OVER = b"over"  # the flow's process ends by itself, having told the server what there was to tell
WORKER_SECONDS = 30.0  # for a worker that is still there to report the run, with the exit code that only it knows
TELL_SECONDS = 600.0  # to reach the server
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
    atexit.register(_dismiss, witness)


def _dismiss(witness: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        witness.communicate(OVER, timeout=LOOK_SECONDS)


def main(run: str, attempt: str, worker: str, since: str) -> None:
    """Wait for the end of the flow's process; report the run if nobody else does."""
    for number in (signal.SIGTERM, signal.SIGINT):  # systemd sends them to all that a service has started
        signal.signal(number, signal.SIG_IGN)
    where = f"process {os.getppid()} on {os.uname().nodename}"
    if sys.stdin.buffer.read() == OVER:
        return
    from prefect.client.orchestration import get_client  # 1 s, of those that have one

    from flows.run.holder import alive, report

    end, patience = time.monotonic() + TELL_SECONDS, time.monotonic() + WORKER_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # a server that is away comes back
            found = client.read_flow_run(run)  # type: ignore[arg-type]  # text goes into the address
            if not alive(found) or found.run_count != int(attempt):
                return
            if time.monotonic() > patience or not _lives(int(worker), float(since)):
                report(client, found, where)
                return
        time.sleep(LOOK_SECONDS)


def _lives(pid: int, since: float) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
