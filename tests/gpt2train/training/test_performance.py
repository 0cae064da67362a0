"""Performance options change no result, and phases of a step: what is counted where, and who waits for whom."""

import gc
import math
import statistics
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from gpt2train.config import PerformanceSettings, TrainSettings
from gpt2train.data.batch import Batch
from gpt2train.launch.rank_process import StopRequest
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_logger import phase_line
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.train import train
from gpt2train.training.engine import Engine
from gpt2train.training.performance import (
    can_start_next_step,
    collective_timeout,
    compile_module,
    cudnn_is_wrong,
    fast_kernels,
    freeze_gc,
)
from gpt2train.training.phases import PHASES, PhaseTimer, StreamPhaseTimer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import STEPS, curve, make, weights, write, write_tokens

SHAPE = Shape(vocab=300, layers=2, heads=2, hidden=32, context=16)
CPU = torch.device("cpu")


def tokens() -> torch.Tensor:
    return torch.randint(SHAPE.vocab, (2, SHAPE.context + 1), generator=torch.Generator().manual_seed(0))


@pytest.mark.exhaustive  # minutes of C++ compiler; a sharded block compiles in tests/gpt2train/parallel
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_gives_the_same_numbers(whole: bool) -> None:
    torch._dynamo.utils.counters.clear()
    plain, compiled = (initialise(GPT2(SHAPE), 1) for _ in range(2))
    compile_module(compiled, PerformanceSettings(compile="on"), CPU, whole=whole, loss=True)
    x = tokens()
    losses = [model(x[:, :-1], x[:, 1:]) for model in (plain, compiled)]
    for loss in losses:
        (loss / 32).backward()
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == (1 if whole else 2)  # all blocks share one; the loss


@pytest.mark.parametrize(
    ("autotune", "compile", "requested", "expected"),
    [(False, "on", 300, 300), (True, "auto", 300, 1800), (True, "on", 7200, 7200), (True, "off", 300, 300)],
)
def test_ranks_wait_for_a_rank_that_autotunes(autotune: bool, compile: Any, requested: int, expected: int) -> None:
    settings = PerformanceSettings(compile=compile, max_autotune=autotune)
    assert collective_timeout(settings, timedelta(seconds=requested)) == timedelta(seconds=expected)


@pytest.mark.parametrize("compile", ["auto", "off", pytest.param("blocks", marks=pytest.mark.slow)])
def test_a_cpu_compiles_blocks_if_asked_to_and_else_nothing(compile: Any) -> None:
    model = GPT2(SHAPE)
    compile_module(model, PerformanceSettings(compile=compile), CPU, whole=True)
    compiled = ["forward" in vars(part) for part in (model, *model.blocks.values())]
    assert compiled == [False, *[compile == "blocks"] * SHAPE.layers]


def test_the_stream_is_in_half_precision_on_a_gpu_by_default() -> None:
    cases: list[tuple[dict[str, Any], bool, bool]] = [
        ({}, True, False),
        ({"precision": "fp16"}, False, False),
        ({"precision": "fp32"}, False, False),
        ({"model": {"family": "t5"}, "objective": {"name": "span_corruption"}}, False, False),
        ({"performance": {"stream": "fp32"}}, False, False),
        ({"performance": {"stream": "bf16"}}, True, True),
    ]
    for changes, *expected in cases:
        settings = build(TrainSettings, {"precision": "bf16"}, changes)
        assert [settings.has_half_stream(on_gpu=on_gpu) for on_gpu in (True, False)] == expected, changes


@pytest.mark.parametrize("stream", ["auto", "bf16"])
def test_the_model_of_a_cpu_has_the_stream_that_is_asked_for(tmp_path: Path, alone: DistContext, stream: str) -> None:
    config = make(tmp_path, tmp_path / "run", precision="bf16", performance={"stream": stream})
    (part,) = Engine(config, alone).model_parts
    assert part.stream is (torch.bfloat16 if stream == "bf16" else None)


@pytest.mark.slow
def test_a_validation_compiles_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alone: DistContext) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # seen by dynamo, quick to make
    torch._dynamo.utils.counters.clear()
    config = make(tmp_path, tmp_path / "run", performance={"compile": "on"})
    engine, batch = Engine(config, alone), torch.randint(config.vocab, (2, config.model.context + 1))
    batches = [Batch(batch[:, :-1], batch[:, 1:])]
    engine.accumulate(batches, batch.numel(), 1)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0 and math.isfinite(engine.evaluate(batches)[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("attention", ["cudnn", "flash", "efficient", "math"])
def test_cudnn_never_attends_where_it_is_wrong(attention: Any) -> None:
    for wrong in (False, True):
        with fast_kernels(PerformanceSettings(attention=attention), torch.device("cuda"), wrong):
            assert torch.backends.cuda.cudnn_sdp_enabled() is not wrong
    masked = make(Path("tokens"), Path("run"), documents={"mask_documents": True})
    assert cudnn_is_wrong(masked, CPU) and not cudnn_is_wrong(make(Path("tokens"), Path("run")), CPU)


@pytest.mark.parametrize(("capability", "kv_heads", "tp", "wrong"), [
    ((9, 0), 2, 1, False), ((10, 0), 2, 1, True), ((10, 0), 8, 1, False), ((10, 3), 8, 2, True),
])  # fmt: skip
def test_cudnn_never_attends_with_few_heads_on_blackwell(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kv_heads: int, tp: int, wrong: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    model = {"family": "llama", "heads": 8, "hidden": 64, "options": {"kv_heads": kv_heads}}
    config = make(Path("tokens"), Path("run"), model=model, parallel={"tp": tp})
    assert cudnn_is_wrong(config, torch.device("cuda")) is wrong


def test_kernel_settings_and_gc_are_restored() -> None:
    before = torch.get_float32_matmul_precision()
    gc.unfreeze()
    with fast_kernels(PerformanceSettings(), CPU), freeze_gc():
        assert torch.get_float32_matmul_precision() == before
        assert gc.get_freeze_count() > 0
        with freeze_gc():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()


class StopsAt(StopRequest):
    """Stop request at a step, counted by the reads of `requested`, one for each step."""

    def __init__(self, step: int) -> None:
        self.left = step

    @property
    def requested(self) -> bool:  # type: ignore[override]
        self.left -= 1
        return self.left <= 0


@pytest.mark.exhaustive
def test_starting_the_next_step_early_changes_nothing(tmp_path: Path, alone: DistContext) -> None:
    tokens = write_tokens(tmp_path)
    numbers = {}
    for overlap in ("off", "on"):
        changes = {"model": {"dropout": 0.1}, "checkpoints": {"interval": 5}, "performance": {"overlap": overlap}}
        config = make(tokens, tmp_path / overlap, **changes)
        early = [step for step in range(1, STEPS + 1) if can_start_next_step(config, CPU, step)]
        assert early == ([step for step in range(1, STEPS) if step % 5] if overlap == "on" else [])
        assert train(config, alone, StopsAt(7)).step == 7
        assert train(config, alone).step == STEPS
        numbers[overlap] = curve(tmp_path / overlap), weights(tmp_path / overlap)
    assert numbers["on"][0] == numbers["off"][0]
    for name, weight in numbers["off"][1].items():
        assert torch.equal(numbers["on"][1][name], weight), name


def test_fp16_never_starts_the_next_step_early(tmp_path: Path) -> None:
    config = make(tmp_path, tmp_path / "run", performance={"overlap": "on"}, precision="fp16")
    assert not any(can_start_next_step(config, CPU, step) for step in range(STEPS))


class NoReading(TorchFunctionMode):
    """Refuses operations that wait for a GPU: reading a number from it, or copying one to it from pageable memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        reads = {"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero"}
        writes = {"tensor", "as_tensor", "new_tensor"}
        if name in reads | writes:
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


def test_a_step_synchronises_with_the_device_only_once(alone: DistContext) -> None:
    changes = {"model": {"dropout": 0.1}, "batch": {"micro_batch": 2, "global_batch": 4}}
    engine = Engine(make(Path("none"), Path("none"), **changes), alone)
    x = tokens()
    batches = [Batch(x[:, :-1], x[:, 1:])] * 2
    with NoReading():
        measure = engine.measure(engine.accumulate(batches, 64, 1), 64, 1.0, stop=False)
        engine.update(measure, 1e-3)
        with pytest.raises(AssertionError, match="waits for the device"):
            measure.read()
    loss, norm, stop, _ = measure.read()
    assert loss == pytest.approx(5.70, abs=0.2)  # ln 300: padding takes no part
    assert norm > 0 and not stop


SPOILED_RANK = Path(__file__).parent / "spoiled_rank.py"
SECONDS = 0.3  # that the slow rank sleeps in each step


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    return clock


def test_a_phase_within_another_is_counted_once_and_an_error_leaves_it(now: list[float]) -> None:
    phases = PhaseTimer()
    with phases("backward"):
        now[0] += 1
        with phases("forward"):
            now[0] += 2
            with phases("communication"):
                now[0] += 4
        now[0] += 8
    now[0] += 16
    expected = {"data": 0, "forward": 2, "backward": 9, "communication": 4, "optimizer": 0, "other": 16}
    assert phases.lap() == expected
    assert phases.lap() == dict.fromkeys(PHASES, 0)
    with pytest.raises(ValueError), phases("data"):
        now[0] += 1
        raise ValueError
    now[0] += 2
    assert phases.lap()["other"] == 2


def test_pauses_and_other_threads_do_not_count(now: list[float]) -> None:
    phases = PhaseTimer()

    def elsewhere() -> None:
        with phases("communication"):
            now[0] += 1

    with phases("optimizer"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with phases.paused():
            now[0] += 50
            with phases("communication"):
                now[0] += 50
        now[0] += 2
    assert phases.lap()["optimizer"] == 3
    now[0] += 7
    phases.restart()
    now[0] += 4
    found = phases.lap()
    assert found["other"] == sum(found.values()) == 4


def test_the_line_has_means_and_shares() -> None:
    rows = [{"data_seconds": 0.001, "forward_seconds": 0.4}, {"data_seconds": 0.003, "forward_seconds": 1.596}]
    assert phase_line(rows) == "a step takes 1.00 s: data 2 ms 0%, forward 998 ms 100%"


def shares(run: str | Path) -> list[float]:
    """Of each step the sum of its phases, as a multiple of its seconds."""
    return [sum(row[f"{name}_seconds"] for name in PHASES) / row["seconds"] for row in read_metrics(run)]


@pytest.mark.slow
def test_phases_add_up_to_the_seconds_of_a_step(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run")
    wait = dist.distributed_c10d.Work.wait
    train(config, alone)
    assert dist.distributed_c10d.Work.wait is wait
    # The two clocks are read one after the other; a busy machine can stop the process between them, in single steps.
    assert statistics.median(abs(share - 1) for share in shares(config.output)) < 0.02
    rows = read_metrics(config.output)
    for name in ("forward", "backward", "optimizer"):
        assert statistics.median(row[f"{name}_seconds"] for row in rows) > 0, name
    named = [sum(row[f"{name}_seconds"] for name in PHASES[:-1]) / row["seconds"] for row in rows]
    assert statistics.median(named) > 0.5


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("parallel", "kind"),
    [({"zero": 0}, "wait"), ({"zero": 3}, "wait"), ({"tp": 2}, "wait"), ({"pp": 2}, "wait"), ({}, "data")],
    ids=["dp", "zero 3", "tp", "pp", "data"],
)
def test_waiting_has_a_phase_of_its_own(parallel: dict[str, Any], kind: str, tokens: Path, tmp_path: Path) -> None:
    """Rank 1 sleeps in each step, and is named as the slowest; or the batches of rank 0 come late."""
    changes = {"steps": 6, "logging": {"interval": 3}, "performance": {"prefetch": kind == "wait"}}
    config = make(tokens, tmp_path / "run", parallel=parallel, **changes)
    run_ranks(SPOILED_RANK, write(config), kind, str(SECONDS))
    rows = read_metrics(config.output)
    name = {"wait": "communication", "data": "data"}[kind]
    medians = {phase: statistics.median(row[f"{phase}_seconds"] for row in rows) for phase in PHASES}
    # Rank 0 waits less than the other one sleeps if a busy machine stops it meanwhile.
    assert medians[name] > SECONDS / 3 and medians[name] == max(medians.values()), medians
    if parallel == {"zero": 0}:
        named = {row["step"]: row for row in rows if "slowest_rank" in row}
        assert list(named) == [3, 6] and {row["slowest_rank"] for row in named.values()} == {1}
        assert all(row["slowest_rank_excess"] > 0.1 and 0.1 < row["waiting"] < 1 for row in named.values())
    assert statistics.median(abs(share - 1) for share in shares(config.output)) < 0.02


class FakeEvent:
    """Event of a device that computes three seconds behind the host."""

    now: ClassVar[float] = 0.0
    made: ClassVar[int] = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1

    def record(self) -> None:
        self.time = FakeEvent.now + 3

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.time - self.time) * 1e3


def test_a_stream_is_cut_where_a_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    phases = StreamPhaseTimer()
    for step in range(50):
        with phases("backward"):
            FakeEvent.now += 2
            with phases("forward"):
                FakeEvent.now += 1
        with phases("optimizer"):  # the gradient norm of this step
            FakeEvent.now += 0.5
            phases.cut()
        with phases.paused():
            FakeEvent.now += 100
        with phases("optimizer"):  # the update, which is queued behind it
            FakeEvent.now += 4
        phases.restart()
        expected = {"data": 0, "forward": 1, "backward": 2, "optimizer": 4.5 if step else 0.5, "other": 0}
        assert phases.lap() == expected
    assert FakeEvent.made < 25  # they are used again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_phases_of_a_gpu_add_up(tokens: Path, tmp_path: Path) -> None:
    from gpt2train.parallel.mesh import join

    config = make(tokens, tmp_path / "run", device="cuda", steps=40, validation={"interval": 1000})
    train(config, join("cuda"))
    dist.destroy_process_group()
    rows = read_metrics(config.output)[5:]
    assert "communication_seconds" not in rows[0]
    total = sum(row[f"{name}_seconds"] for row in rows for name in PHASES if name != "communication")
    assert abs(total / sum(row["seconds"] for row in rows) - 1) < 0.1
    assert all(row["forward_seconds"] > 0 and row["backward_seconds"] > 0 for row in rows)
