"""What it costs to run a batch: start of the workers, and milliseconds a batch beyond its work, for each runner.

The batch writes a few bytes and is recorded as committed, as every batch is; called directly it is the floor that the
others are held against. `python -m benchmarks.runner [--batches 100] [--runners local dask ray]`
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import flows  # noqa: F401 - settles Prefect's environment
from benchmarks.pairs import machine
from flows.orchestration.server import prefect_server
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Outcome
from tasks.core.runner import Group, Runner
from tasks.core.step import Step


def touch(folder: Folder, name: str, item: int) -> Outcome:
    """As little as a batch can do: one small file."""
    folder.write_bytes(name, b"x")
    return Outcome(seen=item)


def measure(runner: Runner, place: Path, batches: int) -> tuple[float, float]:
    """Seconds until the first batch is done, and milliseconds for each of many after that."""
    step = Step(Folder(place), "touch", version=1, parameters={}, inputs={})
    with runner:
        started = time.perf_counter()
        runner.batches(step, "first", [0], touch)
        first = time.perf_counter() - started
        runner.batches(step, "warm", range(4), touch)
        started = time.perf_counter()
        runner.batches(step, "part", range(batches), touch)
        return first, 1000 * (time.perf_counter() - started) / batches


def in_flow(runner: Runner, place: Path, batches: int) -> tuple[float, float]:
    """The same within a flow run, which travels to the workers as the context of each batch: the runner stays here."""
    from prefect import flow

    from flows.orchestration.task_runner import LocalCall

    held = LocalCall(lambda: measure(runner, place, batches))

    @flow(name="measure")
    def measured() -> Any:
        return held.call()

    found: Any = measured()
    return (found[0], found[1])


def direct(place: Path, batches: int) -> float:
    """Milliseconds a batch with no runner at all."""
    step = Step(Folder(place), "touch", version=1, parameters={}, inputs={})
    started = time.perf_counter()
    Group(step, tuple((f"part-{number:05d}", number) for number in range(batches)), touch, ()).run()
    return 1000 * (time.perf_counter() - started) / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runners", nargs="*", default=["local", "dask", "ray"])
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder, prefect_server():
        from flows.compat.prefect import refresh_settings
        from flows.orchestration.cluster_runner import ClusterRunner
        from flows.orchestration.task_runner import PrefectRunner

        refresh_settings()
        place = Path(folder)
        print(f"{'called directly':<28}{'':>12}{direct(place / 'direct', given.batches):>10.1f} ms a batch")
        show("plain runner", measure(Runner(given.workers), place / "plain", given.batches))
        for kind in given.runners:
            runner = PrefectRunner(given.workers) if kind == "local" else ClusterRunner(kind, None, given.workers)
            show(f"--runner {kind}", in_flow(runner, place / kind, given.batches))
        print(f"{'called directly':<28}{'':>12}{direct(place / 'again', given.batches):>10.1f} ms a batch")


def show(name: str, measured: tuple[float, float]) -> None:
    """One line of the result."""
    print(f"{name:<28}{measured[0]:>10.1f} s{measured[1]:>10.1f} ms a batch")


if __name__ == "__main__":
    from benchmarks import runner

    runner.main()  # by its name, not as the main module: workers have to find `touch`
