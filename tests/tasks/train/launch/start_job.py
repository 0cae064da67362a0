"""Start a job for the tests of launchers: `python -m tests.tasks.train.launch.start_job CONFIG SETTINGS.json`.

SIGTERM is to it what a cancellation is to a flow.
"""

import signal
import sys
from pathlib import Path
from types import FrameType

from tasks.train.launch.job import Job
from tasks.train.launch.registry import launchers
from tasks.train.launch.settings import LaunchSettings


class Cancelled(BaseException):
    """The flow was cancelled."""


def cancel(number: int, frame: FrameType | None) -> None:
    raise Cancelled


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, cancel)
    launch = LaunchSettings.model_validate_json(Path(sys.argv[2]).read_text())
    try:
        sys.exit(launchers()[launch.launcher].run(Job(sys.argv[1], launch), lambda line: print(line, flush=True)))
    except Cancelled:
        print("cancelled", flush=True)
        sys.exit(99)
