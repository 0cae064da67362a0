"""A flow with slow batches in worker processes, for the tests of cancellation and of retries."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow

from flows.orchestration.run_context import run_context
from flows.settings import OutputSettings
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.step import Step

BATCHES = 40


def nap(folder: Folder, name: str, seconds: float) -> Outcome:
    """Sleep, in a worker process, and leave a file that shows when."""
    time.sleep(seconds)
    folder.write_bytes(f"{name}.txt", str(time.time_ns()).encode())
    return Outcome(outputs=(folder.record(f"{name}.txt"),), seen=1, kept=1)


def die_once(folder: Folder, name: str, seconds: float) -> Outcome:
    """Nap; the first try of the third batch ends as by the kernel's OOM killer."""
    died = Path(folder.path()).with_name("died")
    if name.endswith("-00002") and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return nap(folder, name, seconds)


def naps(
    root: Folder, seconds: float, runner: Runner, batch: Callable[..., Outcome] = nap, count: int = BATCHES
) -> Manifest:
    step = Step(root, "naps", version=1, parameters={}, inputs={})
    if done := runner.finished(step):
        return done
    return step.commit(Outcome.total(runner.batches(step, "nap", [seconds] * count, batch)))


@flow(name="slow-batches")
def slow_batches(settings: dict[str, Any], seconds: float) -> str:
    with run_context(OutputSettings(**settings)) as runner:
        return runner.run_step(naps, Folder(settings["output"]), seconds).folder


@flow(name="nested-batches")
def nested_batches(settings: dict[str, Any], seconds: float) -> str:
    return slow_batches(settings, seconds)
