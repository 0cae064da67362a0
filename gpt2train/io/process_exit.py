"""End of a command whose work is done: exit handlers run, the teardown of the interpreter and of native code does not.

Threads of native libraries can outlive their users and run into a destructor that calls `std::terminate` while the
process ends: a program that had read one small Parquet file with pyarrow once ended with SIGABRT ("terminate called
without an active exception"), after all its work was done.
"""

import atexit
import contextlib
import logging
import os
import sys

_status: int | None = None


def install() -> None:
    """Register the handler that ends the process; to be called before others register theirs, so that it runs last."""
    atexit.register(_end)


def set_exit_status(code: int) -> None:
    """Set the exit status of a process whose work is done; without it the process ends in the usual way."""
    global _status
    _status = code


def _end() -> None:
    """End the process. Python has joined all threads that are no daemons, and called the other handlers."""
    if _status is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader may be gone, or the stream closed
            stream.flush()
    os._exit(_status)
