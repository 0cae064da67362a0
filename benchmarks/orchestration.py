"""What Prefect costs: the main job with it and without, milliseconds a batch, and seconds until the first step begins.

`job`: the same step functions, settings and workers, once as the flow `pipeline` on a running Prefect server and once
called plainly with the plain runner, in turn, each in a process of its own; wall and CPU seconds of the job, imports
left out. `batches`: batches of next to no work, in a flow and called plainly. `start`: from the command to the first
step, with no server (the embedded one is started, its database is there) and with one that runs; on finished work, so
that the command does nothing else.

    python -m benchmarks.orchestration [job batches start] [--config F.toml] [--rounds 3]

Without `--config` the job is the embedded demo, 2-3 minutes a turn on two quiet cores.
"""

import argparse
import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flows  # noqa: F401 - settles Prefect's environment
from benchmarks.pairs import machine
from benchmarks.runner import direct, in_flow, measure
from flows.orchestration.server import prefect_server
from tasks.core.runner import Runner

PARTS = ("job", "batches", "start")
WORDS = "the a of to and in that was it for on with as at by from this but not we they had were been which house river "
WORDS += "morning letter people road small old found made went long water work year little great time side country"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--config", help="settings of the job; the demo where not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--child", choices=("plain", "prefect"), help="what a process of the job does")
    parser.add_argument("--output")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run_job(given.child, given.config, given.output)))
        return
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["PREFECT_HOME"] = str(place / "home")
        if "start" in given.parts:
            start(place, given.rounds)
        with prefect_server():
            if "batches" in given.parts:
                batches(place, given.rounds, given.batches)
            if "job" in given.parts:
                job(place, given.rounds, given.config)


def job(place: Path, rounds: int, config: str | None) -> None:
    """The main job, in turn."""
    taken: dict[str, list[dict[str, float]]] = {"prefect": [], "plain": []}
    for turn in range(rounds):
        for kind, results in taken.items():
            output = place / f"{kind}-{turn}"
            command = [sys.executable, "-m", "benchmarks.orchestration", "--child", kind, "--output", str(output)]
            command += ["--config", config] if config else []
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            results.append(json.loads(done.stdout.splitlines()[-1]))
            shutil.rmtree(output)
    print(f"main job, {rounds} rounds")
    for unit in ("wall", "cpu"):
        both = [[result[unit] for result in results] for results in taken.values()]
        ratio = statistics.median(ours / plain for ours, plain in zip(*both, strict=True))
        ours, plain = map(statistics.median, both)
        print(f"  {unit:<5} with Prefect {ours:8.1f} s   plain {plain:8.1f} s   ratio {ratio:.3f}")


def run_job(kind: str, config: str | None, output: str) -> dict[str, float]:
    """Run the main job in this process; wall and CPU seconds of it and of all that it started."""
    from flows.pipeline import pipeline
    from flows.settings import PipelineSettings, resolve

    settings = resolve(PipelineSettings, config, {"output": output})
    before, began = _cpu(), time.perf_counter()
    if kind == "plain":
        run = pipeline.planned(settings)
        with PlainRunner(settings.workers, limits=settings.limits) as runner:
            run.conclude(run.recipe(runner), PlainRunner.publisher)  # type: ignore[arg-type]
    else:
        pipeline(config=None, **settings.model_dump(mode="json"))
    return {"wall": time.perf_counter() - began, "cpu": _cpu() - before}


class NullPublisher:
    """Publisher that drops the artifacts of a flow without Prefect."""

    def publish(self, *arguments: Any, **options: Any) -> None:
        """Drop an artifact."""


class PlainRunner(Runner):
    """Plain runner with the publisher that the flows expect."""

    publisher = NullPublisher()


def batches(place: Path, rounds: int, count: int) -> None:
    """Milliseconds a batch, in turn; the floor is one that is called directly."""
    from flows.compat.prefect import refresh_settings
    from flows.orchestration.task_runner import PrefectRunner

    refresh_settings()
    found: dict[str, list[float]] = {"called directly": [], "plain runner": [], "Prefect": []}
    for turn in range(rounds):
        found["called directly"].append(direct(place / f"direct-{turn}", count))
        found["plain runner"].append(measure(Runner(2), place / f"plain-{turn}", count)[1])
        found["Prefect"].append(in_flow(PrefectRunner(2), place / f"flow-{turn}", count)[1])
    print(f"{count} batches of next to no work, {rounds} rounds")
    for name, taken in found.items():
        print(f"  {name:<16} {statistics.median(taken):6.1f} ms a batch  ({min(taken):.1f}–{max(taken):.1f})")


def start(place: Path, rounds: int) -> None:
    """Seconds from the command to the first step: without a server, and then with one."""
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS.split(), k=400)).capitalize() + "." for _ in range(300)]
    passages = [" ".join(chance.choices(WORDS.split(), k=40)) for _ in range(20)]
    for name, some in {"texts.jsonl": texts, "lambada.jsonl": passages}.items():
        (place / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    command = [sys.executable, "-m", "flows.dataprep", "--documents", str(place / "texts.jsonl")]
    command += ["--output", str(place / "out"), "--workers", "1", "--tokenizer.vocab-size", "400"]
    command += ["--lambada", str(place / "lambada.jsonl")]
    began = time.perf_counter()
    first = _seconds_to_step(command, {})
    print(f"a first command, whose server makes its database: {first[0]:.1f} s of {time.perf_counter() - began:.0f} s")
    taken: dict[str, list[tuple[float, float]]] = {"without a server": [], "with a server": []}
    for _ in range(rounds):
        taken["without a server"].append(_seconds_to_step(command, {}))
    with prefect_server():
        there = {name: os.environ[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
        _seconds_to_step(command, there)  # a server that has just begun is busy with itself
        for _ in range(rounds):
            taken["with a server"].append(_seconds_to_step(command, there))
    print(f"from the command to its first step, {rounds} rounds")
    for name, pairs in taken.items():
        walls, cpus = zip(*pairs, strict=True)
        shown = f"{statistics.median(walls):5.1f} s  ({min(walls):.1f}–{max(walls):.1f})"
        print(f"  {name:<18} {shown}   CPU of the whole command {statistics.median(cpus):.1f} s")


def _seconds_to_step(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall seconds until the first task run began, by Prefect's own record, and CPU seconds of the command."""
    before, began = _cpu(), datetime.now(UTC)
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    with sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db") as database:
        query = "SELECT min(start_time) FROM task_run WHERE start_time >= ?"
        [(first,)] = database.execute(query, [began.strftime("%Y-%m-%d %H:%M:%S.%f")]).fetchall()
    return (datetime.fromisoformat(first).replace(tzinfo=UTC) - began).total_seconds(), _cpu() - before


def _cpu() -> float:
    """CPU seconds of this process and of all below it that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    from benchmarks import orchestration

    orchestration.main()  # by its name, not as the main module: workers have to find what they run
