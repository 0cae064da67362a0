"""A flow with slow batches in worker processes, for the tests of cancellation."""

import time
from typing import Any

from prefect import flow

from flows.orchestration.run_context import run_context
from flows.settings import OutputSettings
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.step import Step

BATCHES = 40


def naps(root: Folder, seconds: float, runner: Runner) -> Manifest:
    step = Step(root, "naps", version=1, parameters={}, inputs={})
    if done := runner.finished(step):
        return done
    return step.commit(Outcome.total(runner.batches(step, "nap", [seconds] * BATCHES, nap)))


def nap(folder: Folder, name: str, seconds: float) -> Outcome:
    """Sleep, in a worker process, and leave a file that shows when."""
    time.sleep(seconds)
    folder.write_bytes(f"{name}.txt", str(time.time_ns()).encode())
    return Outcome(outputs=(folder.record(f"{name}.txt"),), seen=1, kept=1)


@flow(name="slow-batches")
def slow_batches(settings: dict[str, Any], seconds: float) -> str:
    with run_context(OutputSettings(**settings)) as runner:
        return runner.run_step(naps, Folder(settings["output"]), seconds).folder


@flow(name="nested-batches")
def nested_batches(settings: dict[str, Any], seconds: float) -> str:
    return slow_batches(settings, seconds)
