"""Speed of full-size models: contestants that compile side by side and are measured one at a time.

The contestants are those of `benchmarks.trainer`, each in a process of its own. While one is measured, every other
process of the command is stopped (SIGSTOP). A step has at least 131,072 tokens, a quarter of the presets': in one of
8,192 AdamW alone would take 5 points of the use of the card.
"""

import math
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.processes import TIME_UP, Limit, Turns, daemon, first_line, kill, last_error
from benchmarks.gpu.result import Result, at_least, at_most
from benchmarks.train import SHAPES, Contestant
from benchmarks.trainer import Task, config_of
from gpt2train.config import RunConfig
from gpt2train.monitoring.gpu_peaks import peak_flops
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.layout import Layout
from gpt2train.plan.duration import step_time
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import pieces
from gpt2train.settings import build

PART = "speed"
STEPS, ROUNDS = {"cpu": 1, "cuda": 3}, 2
SAME = 0.02  # relative difference of two rounds of a steady measurement
PLAN_BOUND = 0.10  # relative error of `plan`
PEERS = ("transformers", "plain")
FIRST_STEP_SECONDS = 300.0  # of which most is compilation
ROUND_SECONDS = 40.0  # while all others wait
# Share of the peak, by the card's name and the preset.
BARS = {
    "H200": {"124m": 0.45, "345m": 0.50, "1542m": 0.50},
    "H100": {"124m": 0.42, "345m": 0.46, "1542m": 0.48},
}


@dataclass(frozen=True)
class Job:
    """A contestant to measure.

    Attributes:
        shape: name in `benchmarks.train.SHAPES`.
        contestant: name in `benchmarks.trainer.CONTESTANTS`.
        micro_batches: those to try, the largest first.
        tokens: tokens of a step.
        share: share of the device's memory that it may need by plan.
        has_bars: True if the use of the card and the errors of `plan` are held against bounds.
        seconds: time for its first step.
    """

    shape: str
    contestant: str
    micro_batches: tuple[int, ...]
    tokens: int = 131_072
    share: float = 0.4
    has_bars: bool = False
    seconds: float = FIRST_STEP_SECONDS

    @property
    def name(self) -> str:
        return f"{self.shape} {self.contestant}"


@dataclass(frozen=True)
class Card:
    """The device.

    Attributes:
        device: "cpu" or "cuda".
        name: product name; empty for a CPU.
        memory: bytes.
    """

    device: str
    name: str = ""
    memory: float = math.inf

    @property
    def peak(self) -> float | None:
        """Dense half-precision FLOP/s; None if not known."""
        return peak_flops(self.name) if self.name else None

    def bar(self, shape: str) -> float | None:
        """Share of the peak that a preset is to reach."""
        return next((bars.get(shape) for name, bars in BARS.items() if name in self.name), None)


FIRST = (
    Job("1542m", "ours, blocks", (16, 8, 4), share=0.75, has_bars=True),
    Job("345m", "ours", (32, 16, 8), has_bars=True),
    Job("124m", "ours", (64, 32, 16), 262_144, has_bars=True),
)
SECOND = (
    Job("124m", "ours", (32, 16)),
    Job("124m", "plain", (32, 16)),
    Job("345m", "ours", (16, 8)),
    Job("345m", "plain", (16, 8)),
    Job("124m", "transformers", (32, 16)),
    Job("124m", "ours, flash", (32, 16)),
    Job("124m", "ours, documents", (32, 16)),
    Job("124m", "ours, fp8 tensorwise", (32, 16)),
    Job("124m", "ours, muon", (32, 16)),
)
REHEARSAL = (
    Job("tiny", "planted crash", (4,), 1_024),
    Job("tiny", "planted hang", (4,), 1_024, seconds=15),
    Job("tiny", "planted out of memory", (4, 2), 1_024),
    Job("tiny", "ours", (4,), 1_024, has_bars=True),
    Job("tiny", "plain", (4,), 1_024),
    Job("tiny", "ours, muon", (4,), 1_024),
)


def bars(jobs: tuple[Job, ...], card: Card) -> list[str]:
    """Names of the results without which the measurement is incomplete."""
    if card.device == "cpu":
        return []
    found = []
    for job in jobs:
        if job.has_bars:
            found += [f"{job.shape} MFU"] if card.bar(job.shape) else []
            found += [f"{job.shape} memory", *([f"{job.shape} step time"] if card.peak else [])]
        if job.contestant in PEERS:
            found.append(f"{job.shape} against {job.contestant}")
    return found


class Speed:
    """Measurement of jobs by some workers side by side.

    Args:
        jobs: what to measure, in the order of worth.
        card: the device.
        turns: the right to start a process, and to measure in it.
        record: function that takes each result at once.
        workers: number of jobs that compile side by side.
    """

    def __init__(
        self,
        jobs: tuple[Job, ...],
        card: Card,
        turns: Turns,
        record: Callable[[Result], None],
        workers: int,
    ) -> None:
        self.jobs, self.card, self.turns, self.record = jobs, card, turns, record
        self.waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self.waiting.put(job)
        self.ended, self.rates = set[Job](), dict[tuple[str, str], float]()
        self._working, self._retry = set[Job](), threading.Lock()
        self.threads = [daemon(self._work) for _ in range(workers)]

    def _work(self) -> None:
        while self.turns.left > 0:
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._measure(job)
            except Exception as error:  # noqa: BLE001 - the finding
                if self.turns.left <= 0:
                    return
                text = first_line(str(error))
                text = text if isinstance(error, ChildProcessError) else f"{type(error).__name__}: {text}"
                self.record(Result(PART, job.name, False, detail=text))
            self.ended.add(job)

    def leave_out(self) -> None:
        """Record the jobs that the time did not suffice for."""
        for job in self.jobs:
            if job not in self.ended:
                self.record(Result(PART, job.name, None, detail=TIME_UP))

    def _measure(self, job: Job) -> None:
        sizes = self._fitting(job)
        if not sizes:
            raise ValueError(f"by plan no micro-batch of {job.micro_batches} fits")
        for micro in sizes:
            task = Task(
                SHAPES[job.shape][0],
                micro,
                max(1, job.tokens // (micro * SHAPES[job.shape][0].context)),
                self.card.device,
                compile=self.card.device == "cuda",
            )
            try:
                self._run(job, task)
                return
            except MemoryError:  # of which others may hold much
                with self._retry:
                    while self._working:
                        time.sleep(0.2)
                    try:
                        self._run(job, task)
                        return
                    except MemoryError as error:
                        self.record(Result(PART, f"{job.name} at {micro}", None, detail=first_line(str(error))))
        self.record(Result(PART, job.name, False, detail=f"out of memory at every micro-batch of {sizes}"))

    def _fitting(self, job: Job) -> tuple[int, ...]:
        """Micro-batches that need at most the job's share of the memory by plan."""
        if self.card.device == "cpu":
            return job.micro_batches
        allowed = job.share * self.card.memory
        return tuple(
            m for m in job.micro_batches if self._planned(Task(SHAPES[job.shape][0], m, 2, "cuda", True))[0] < allowed
        )

    def _planned(self, task: Task) -> tuple[float, float]:
        """Bytes and seconds of a step by plan."""
        settings = build(RunConfig, config_of(task))
        layout, parts = Layout.of(settings, 1), pieces(settings, task.shape)
        hardware = Hardware(
            gpus=1,
            gpus_per_node=1,
            memory=min(self.card.memory, 1e15) / GB,
            tflops=(self.card.peak or 1e12) / 1e12,
            bandwidth=4800 if "H200" in self.card.name else 3350,
        )
        seconds = step_time(settings, task.shape, layout, parts, hardware).total
        return peak(settings, task.shape, layout, parts[0], 0).device, seconds

    def _run(self, job: Job, task: Task) -> None:
        """Compile a contestant, measure it alone and record what was found.

        Raises:
            MemoryError: the device has too little memory.
        """
        self._working.add(job)
        began, doing = time.monotonic(), "first step"
        try:
            with tempfile.TemporaryFile() as errors:
                with self.turns.starting():
                    contestant = Contestant(job.contestant, task, 1, 1, stderr=errors, start_new_session=True)
                limit = Limit(contestant.process, job.seconds)
                try:
                    contestant()
                    compiled = time.monotonic() - began
                    contestant.steps = STEPS[self.card.device]
                    with self.turns.alone(contestant.process.pid):
                        doing = "measured rounds"
                        while len(contestant.rounds) < 1 + ROUNDS or (
                            len(contestant.rounds) == 1 + ROUNDS and _spread(_seconds(contestant)) > SAME
                        ):  # a third one if the first has warmed up
                            limit.renew(ROUND_SECONDS)
                            contestant()
                except SystemExit as error:
                    code = contestant.process.wait()
                    hung = f"hung for {limit.seconds:g} s in its {doing}"
                    ended = hung if limit.over else f"ended with exit code {code}"
                    raise ChildProcessError(f"{ended}: {last_error(errors)}") from error
                finally:
                    limit.cancel()
                    kill(contestant.process)
                    contestant.close()
        finally:
            self._working.discard(job)
        for result in self._results(job, task, contestant, compiled):
            self.record(result)

    def _results(self, job: Job, task: Task, contestant: Contestant, compiled: float) -> Iterator[Result]:
        last, taken = contestant.rounds[-1], _seconds(contestant)[-ROUNDS:]
        seconds = statistics.mean(taken)
        rate = task.tokens / seconds
        card, cpu = self.card, self.card.device == "cpu"
        share = rate * flops_per_token(task.shape) / card.peak if card.peak else None
        detail = (
            f"{rate:,.0f} tokens/s, micro-batch {task.micro_batch} x {task.accumulation}, "
            f"first step after {compiled:.0f} s, peak {last['peak'] / 2**30:.1f} GiB, loss {last['loss']:.3f}, rounds "
            + ", ".join(f"{one:.3f}" for one in _seconds(contestant))
        )
        if job.has_bars and share is not None:
            bar = card.bar(job.shape)
            good = None if bar is None else share >= bar
            yield Result(PART, f"{job.shape} MFU", good, share, bar, "of the peak", f"{job.contestant}: {detail}")
        else:
            used = "" if share is None else f"{share:.1%} of the peak, "
            yield Result(PART, job.name, None, rate, None, "tokens/s", used + detail)
        # A loss of NaN is fast; random tokens cannot be predicted.
        yield at_most(PART, f"{job.name} loss", last["loss"], math.log(task.shape.vocab) + 1, "nats", "random tokens")
        yield _unless(cpu, at_most(PART, f"{job.name} spread", _spread(taken), SAME, "relative", "of two rounds"))
        if job.has_bars:
            for name, planned, measured in zip(
                ("memory", "step time"), self._planned(task), (last["peak"], seconds), strict=True
            ):
                if name == "memory" or card.peak:
                    unit, by = ("GiB", 2**30) if name == "memory" else ("s", 1)
                    text = f"plan {planned / by:.3g} {unit}, measured {measured / by:.3g} {unit}"
                    error = abs(planned / measured - 1)
                    yield _unless(cpu, at_most(PART, f"{job.shape} {name}", error, PLAN_BOUND, "relative", text))
        yield from self._compared(job, rate)

    def _compared(self, job: Job, rate: float) -> Iterator[Result]:
        """Compare with the engine those contestants of a shape that have been measured, once."""
        self.rates[job.shape, job.contestant] = rate
        ours = self.rates.get((job.shape, "ours"))
        if ours is None:
            return
        others = {name: r for (shape, name), r in self.rates.items() if shape == job.shape and name != "ours"}
        for name, other in others.items() if job.contestant == "ours" else ((job.contestant, rate),):
            if name in PEERS:
                text = f"ours {ours:,.0f}, {name} {other:,.0f} tokens/s"
                found = at_least(PART, f"{job.shape} against {name}", ours / other, 1.0, "x", text)
                yield _unless(self.card.device == "cpu", found)
            else:
                yield Result(PART, f"{job.shape} gain of {name}", None, other / ours, None, "x the speed of ours")


def _unless(rehearsed: bool, result: Result) -> Result:
    """Result without its bound in a rehearsal, which is no measurement."""
    fields: dict[str, Any] = vars(result) | ({"ok": None, "bound": None} if rehearsed else {})
    return Result(**fields)


def _seconds(contestant: Contestant) -> list[float]:
    """Seconds of a step in each measured round."""
    return [figures["wall"] / contestant.steps for figures in contestant.rounds[1:]]


def _spread(seconds: list[float]) -> float:
    """Relative difference of the slowest and the fastest round."""
    return max(seconds) / min(seconds) - 1
