"""A process that does each order in a forked child, so that a test can kill one and read what it has left.

It only imports and forks: each order is a process of its own that dies by a real SIGKILL, and none repeats the imports.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def order_server(module: str, errors: Any = None, **environment: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start the process for a module; yield a function that sends it an order and returns the answer.

    The answer is what `serve` of the module returns for the order, with the exit status, negative for a signal.

    Args:
        errors: file for the process's standard error.
        environment: further variables of the process.
    """
    code = f"from {module} import serve; from tests.tasks.forked_orders import answer_orders; answer_orders(serve)"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
    options = {"text": True, "cwd": Path(__file__).parents[2], "env": {**os.environ, **environment}}
    numbers = itertools.count()
    with subprocess.Popen([sys.executable, "-c", code], **streams, **options) as process:

        def order(**what: Any) -> dict[str, Any]:
            number = next(numbers)
            process.stdin.write(json.dumps({"number": number, "order": what}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if answer["number"] == number:  # not the late answer to an order that a test gave up
                    return answer
            raise EOFError("the process that does the orders has ended")

        yield order


def answer_orders(serve: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        given = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(2, 1)  # what an order prints is no answer
                os.write(write, json.dumps(serve(given["order"]) or {}).encode())
                status = 0
            except BaseException as error:  # noqa: BLE001 - the child must not continue as the server
                traceback.print_exc()
                os.write(write, json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode())
            finally:
                os._exit(status)
        os.close(write)
        answer = {"number": given["number"], "status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        os.set_blocking(read, False)  # a process that the child has started may hold the other end open
        with contextlib.suppress(BlockingIOError):
            answer |= json.loads(os.read(read, 2**16) or b"{}")
        os.close(read)
        print(json.dumps(answer), flush=True)
