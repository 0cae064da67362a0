"""The proof on a GPU: its checks where there is one, its machinery anywhere.

pytest -m gpu tests/benchmarks/test_gpu.py          on a machine with a GPU
"""

import json
import math
import re
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import speed
from benchmarks.gpu.correctness import checks, precisions
from benchmarks.gpu.processes import Turns
from benchmarks.gpu.result import NotAvailable, Result, Verdict, at_least, at_most
from benchmarks.gpu.speed import Card, Job, Speed
from benchmarks.gpu.tiny import STEPS, difference, losses, twin
from benchmarks.train import Contestant


@pytest.fixture(autouse=True)
def process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what the command changes in its process."""
    for name, value in (command.ENVIRONMENT | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}).items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("name", checks("cuda"))
def test_the_engine_is_right_on_a_gpu(name: str) -> None:
    try:
        results = list(checks("cuda")[name]())
    except NotAvailable as reason:
        pytest.skip(str(reason))
    assert not [result for result in results if result.ok is False]


def test_a_twin_is_compared_with_the_cpu_in_float32() -> None:
    results = list(precisions("cpu", "cpm-gpt2", "gpt2"))
    assert [result.name for result in results] == ["cpm-gpt2 fp32", "cpm-gpt2 bf16", "cpm-gpt2 fp16"]
    assert all(result.ok for result in results)
    assert results[0].value == 0 < (results[1].value or 0)
    # The bounds are below what an error of the learning rate changes.
    wrong = losses(twin(None, {"optimizer": {"lr": 2e-3}}), "cpu", STEPS["cuda"])
    assert difference(wrong, losses(twin(), "cpu", STEPS["cuda"])) > 0.05


def test_bounds() -> None:
    nan = float("nan")
    assert at_most("p", "n", 1.0, 1.0).ok and not at_most("p", "n", nan, 1.0).ok
    assert at_least("p", "n", 1.0, 1.0).ok and not at_least("p", "n", nan, 1.0).ok
    assert difference([1.0, 2.0], [1.5, 2.0]) == 0.5
    for one, other in (([1.0, nan], [1.0, 2.0]), ([nan, 1.0], [1.0, 1.0])):
        assert math.isnan(difference(one, other))


# A contestant that answers as `benchmarks.trainer` does, without a model: its steps take 20 ms.
TRAINER = """
import json, os, sys, time
name, answered = sys.argv[1], 0
for line in sys.stdin:
    if name == "crash":
        sys.exit("ncclSystemError")
    if name == "no memory":
        print(json.dumps({"out_of_memory": "CUDA out of memory"}), flush=True)
        break
    time.sleep(300 if name == "hang" and answered else 0.02)
    answered += 1
    loss = float("nan") if name == "diverged" else 8.0
    print(json.dumps({"wall": 0.02, "cpu": 0.0, "peak": 2**30, "loss": loss}), flush=True)
"""


def measured(monkeypatch: pytest.MonkeyPatch, card: Card, *jobs: Job) -> list[Result]:
    monkeypatch.setattr(Contestant, "command", (sys.executable, "-c", TRAINER))
    found: list[Result] = []
    run = Speed(jobs, card, Turns(time.monotonic() + 300), found.append, 2)
    for thread in run.threads:
        thread.join(300)
    run.leave_out()
    return found


def test_a_trainer_that_fails_is_a_failure_and_not_a_micro_batch_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [Job("tiny", name, (4, 2)) for name in ("crash", "no memory", "diverged", "ours", "plain")]
    results = measured(monkeypatch, Card("cpu"), *jobs)
    monkeypatch.setattr(speed, "ROUND_SECONDS", 2.0)  # which the others may take on a busy machine
    results += measured(monkeypatch, Card("cpu"), Job("tiny", "hang", (4, 2)))
    found = {result.name: result for result in results}
    failed = {name: result.detail for name, result in found.items() if result.ok is False}
    assert failed.pop("tiny diverged loss") == "random tokens"
    assert failed == {
        "tiny crash": "ended with exit code 1: ncclSystemError",
        "tiny hang": "hung for 2 s in its measured rounds: no error was printed",
        "tiny no memory": "out of memory at every micro-batch of (4, 2)",
    }
    assert found["tiny ours"].value and found["tiny against plain"].value == pytest.approx(1.0)
    assert {"tiny no memory at 4", "tiny no memory at 2"} <= set(found)


def test_a_card_has_its_bars_and_the_largest_micro_batches_that_fit_by_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    h100, h200 = Card("cuda", "NVIDIA H100 80GB HBM3", 79.2 * 2**30), Card("cuda", "NVIDIA H200", 139.8 * 2**30)
    assert (h100.bar("1542m"), h200.bar("1542m"), Card("cuda", "NVIDIA A100").bar("1542m")) == (0.48, 0.5, None)
    chosen = {}
    for card in (h100, h200):
        of = Speed((), card, Turns(math.inf), print, 0)
        chosen[card.name] = [of._fitting(job)[0] for job in speed.FIRST]
    assert chosen["NVIDIA H100 80GB HBM3"][0] == 8 and chosen["NVIDIA H200"][0] == 16
    names = speed.bars(speed.FIRST, h100)
    assert names == [
        f"{preset} {what}" for preset in ("1542m", "345m", "124m") for what in ("MFU", "memory", "step time")
    ]
    assert speed.bars(speed.SECOND, h200) == ["124m against plain", "345m against plain", "124m against transformers"]
    # The whole path of a card with bars, at a step of 20 ms.
    found = {r.name: r for r in measured(monkeypatch, h100, Job("345m", "ours", (16,), has_bars=True))}
    assert set(speed.bars((Job("345m", "ours", (16,), has_bars=True),), h100)) <= set(found)
    assert found["345m MFU"].ok and not found["345m memory"].ok


@pytest.mark.parametrize("call", [[], ["--second"], ["--jobs", "345m:ours:16"]])
def test_a_call_on_a_card_measures_its_jobs(
    call: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(Contestant, "command", (sys.executable, "-c", TRAINER))
    monkeypatch.setattr(command, "STARTED", time.monotonic())
    monkeypatch.setattr(sys, "argv", ["gpu", *call, "--only", "speed", "--json", str(tmp_path / "verdict.json")])
    assert command.main() == (0 if call == ["--second"] else 1), "plan does not foresee a step of 20 ms"
    outcome = json.loads((tmp_path / "verdict.json").read_text())
    jobs = {"[]": speed.FIRST, "['--second']": speed.SECOND}.get(str(call), (Job("345m", "ours", (16,)),))
    names = {result["name"] for result in outcome["results"]}
    assert {f"{job.name} spread" for job in jobs} <= names
    assert outcome["machine"]["device"] == "NVIDIA H200" and outcome["complete"]
    assert capsys.readouterr().out.splitlines()[-1] == "complete"


def test_others_are_stopped_while_one_is_measured() -> None:
    turns, sleep = Turns(math.inf), [sys.executable, "-c", "import time; time.sleep(60)"]
    one, other = psutil.Popen(sleep), psutil.Popen(sleep)
    try:
        with turns.alone(one.pid):
            assert other.status() == psutil.STATUS_STOPPED != one.status()
        assert other.status() != psutil.STATUS_STOPPED
    finally:
        for process in (one, other):
            process.kill()
            process.wait()


def test_the_verdict_is_whole_or_says_what_is_missing(tmp_path: Path) -> None:
    verdict = Verdict(tmp_path / "v.json", {"device": "GPU"}, ("124m MFU",), lambda line: None)
    assert not verdict.outcome()["ok"], "a verdict without a check is none"
    verdict(Result("correctness", "a", True, float("nan"), 1.0))
    assert verdict.outcome()["missing"] == ["124m MFU"] and not verdict.outcome()["ok"]
    assert "NaN" not in (tmp_path / "v.json").read_text()
    verdict(Result("speed", "124m MFU", True, 0.5, 0.4))
    assert verdict.outcome()["ok"] and verdict.outcome()["complete"]
    verdict(Result("speed", "b", None, detail="left out: the time was up"))
    verdict(Result("speed", "c <b>", False, float("nan"), 1.0, "x"))
    written = json.loads((tmp_path / "v.json").read_text())
    assert (written["ok"], written["failed"], written["missing"]) == (False, ["speed: c <b>"], ["b"])
    text = (tmp_path / "v.html").read_text()
    assert "2 of 3 checks passed; incomplete: b" in text and "c &lt;b&gt;" in text and "not a number" in text
    assert not list(tmp_path.glob(".*"))


def test_the_table_comes_last_and_fits(tmp_path: Path) -> None:
    verdict = Verdict(tmp_path / "v.json", {}, [f"bar {n}" for n in range(1_000)], lambda line: None)
    for part in ("speed", "correctness", "ceilings"):
        verdict.results += [Result(part, f"{part} {n}", False, detail="x" * 2_000) for n in range(300)]
    lines = verdict.table().splitlines()
    assert len("\n".join(lines)) < 12_000
    assert [line for line in lines if line.startswith("==")] == ["== failed ==", "== ceilings ==", "== speed =="]
    assert any("speed 0" in line for line in lines) and lines[-1].startswith("INCOMPLETE: bar 0")


@pytest.mark.slow
def test_the_command_ends_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "STARTED", time.monotonic())
    monkeypatch.setattr(command, "END_SECONDS", 0.5)
    options = ["--rehearse", "--minutes", "0.05", "--json", str(tmp_path / "verdict.json")]
    monkeypatch.setattr(sys, "argv", ["gpu", *options])
    assert command.main() == 1
    assert time.monotonic() - command.STARTED < 60
    outcome = json.loads((tmp_path / "verdict.json").read_text())
    assert not outcome["complete"] and not outcome["failed"] and {"tiny ours", "correctness"} <= set(outcome["missing"])


def test_the_wheels_to_carry_complete_what_the_package_requires() -> None:
    root = Path(__file__).parents[2]
    required = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    page = (root / "docs/develop/benchmarks.md").read_text()
    there, carried = re.findall(r"A machine without a network, (.*?) needs these.*?-d .whl (.*?)\n\n", page, re.S)[0]
    known = set(re.findall(r"[a-z][\w-]+", f"{there} {carried}"))
    assert not {re.split(r"[^\w-]", name)[0] for name in required} - known


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("torch", "no_such_a", "no_such_b"))
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse"])
    with pytest.raises(SystemExit, match="has no no_such_a, no_such_b; install what is missing"):
        command.main()


@pytest.mark.slow  # one to two minutes
def test_the_rehearsal_on_a_cpu_reports_every_planted_fault_and_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "verdict.json"
    monkeypatch.setattr(command, "STARTED", time.monotonic())
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", "--json", str(file)])
    assert command.main() == 0, file.read_text()
    outcome = json.loads(file.read_text())
    assert outcome["complete"] and outcome["checked"] >= 40
    assert {result["part"] for result in outcome["results"]} == set(command.PARTS)
    names = {result["name"] for result in outcome["results"]}
    assert {"tiny against plain", "tiny gain of ours, muon", "served texts", "resume bf16", "copy"} <= names
    assert {"compiled gpt2 bf16", "fp8 rowwise llama gradients", "attention flash documents, logits of -120"} <= names
