"""The proof on a GPU: its checks where there is one, its machinery anywhere.

pytest -m gpu tests/benchmarks/test_gpu.py          on a machine with a GPU
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.correctness import checks, precisions
from benchmarks.gpu.page import page
from benchmarks.gpu.result import NotAvailable, Result, at_least, at_most, run_checks
from benchmarks.gpu.tiny import STEPS, difference, losses, twin


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


def failing() -> Iterator[Result]:
    raise RuntimeError("CUDA error: an illegal memory access\nmore lines")
    yield


def missing() -> Iterator[Result]:
    raise NotAvailable("no such kernel")
    yield


def test_a_check_that_raises_is_a_failure_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run_checks("correctness", {"one": failing, "two": missing, "three": failing}, {"three"})
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["begin"] for row in rows if "begin" in row] == ["one", "two"]
    one, two = (row for row in rows if "begin" not in row)
    assert one["ok"] is False and one["detail"].startswith("RuntimeError: CUDA error: an illegal memory access (")
    assert two["ok"] is None and "no such kernel" in two["detail"]


# A part of two checks; the process dies in the first one, as after a fault of the device.
DYING = """
import os, sys
from benchmarks.gpu.result import Result, run_checks
def dies():
    os._exit(7)
    yield
def works():
    yield Result("speed", "second", True, 1.0)
run_checks("speed", {"first": dies, "second": works}, set(sys.argv[1:]))
"""
# A check that hangs and has started another process, and one after it.
HANGING = """
import os, subprocess, sys, time
from benchmarks.gpu.result import Result, run_checks
def hangs():
    child = subprocess.Popen(["sleep", "300"])
    print(child.pid, file=open(sys.argv[1], "w"), flush=True)
    time.sleep(300)
    yield
def works():
    yield Result("speed", "second", True, 1.0)
run_checks(None, {"speed first": hangs, "speed second": works}, set(sys.argv[2:]))
"""


def run_part(*command_line: str, seconds: float = 60, hanging: float = 60) -> list[Result]:
    found: list[Result] = []
    command.run_part("speed", [sys.executable, "-c", *command_line], seconds, found.append, hanging)
    return found


@pytest.mark.parametrize(("death", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])  # 9: out of memory
def test_a_process_that_dies_names_its_check_and_the_others_still_run(death: str, code: int) -> None:
    results = run_part(DYING.replace("os._exit(7)", death))
    assert [(result.name, result.ok) for result in results] == [("first", False), ("second", True)]
    assert f"the process ended with {code};" in results[0].detail


def test_a_check_that_hangs_is_ended_with_what_it_started_and_the_others_still_run(tmp_path: Path) -> None:
    results = run_part(HANGING, str(tmp_path / "pid"), hanging=8)
    assert [(result.name, result.ok) for result in results] == [("speed first", False), ("second", True)]
    assert "hung for 8 s" in results[0].detail
    assert ended(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_ended_and_listed(tmp_path: Path) -> None:
    [result] = run_part(HANGING, str(tmp_path / "pid"), seconds=8)
    assert (result.name, result.ok) == ("speed first", None) and "the time was up" in result.detail
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int) -> bool:
    """Wait until a process has ended, or is a zombie whose parent has not asked for it."""
    for _ in range(200):
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_the_verdict_names_each_failure_and_the_page_shows_it(tmp_path: Path) -> None:
    results = [Result("speed", "a <b>", False, float("nan"), 1.0, "x"), Result("memory", "c", True, 0.1, 0.2)]
    outcome = command.verdict(results, {"device": "GPU"}, 2.0)
    assert (outcome["ok"], outcome["failed"], outcome["checked"]) == (False, ["speed: a <b>"], 2)
    text = page(outcome)
    assert "1 of 2 checks passed" in text and "a &lt;b&gt;" in text and "not a number" in text and "<b>" not in text
    assert not command.verdict([Result("speed", "n", None)], {}, 1.0)["ok"], "a verdict without a check is none"


def test_parts_that_do_not_fit_the_time_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*options: str) -> dict[str, Any]:
        file = tmp_path / "verdict.json"
        monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", "--json", str(file), *options])
        command.main()
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    left_out = run("--minutes", "0.01")
    assert all("left out" in result["detail"] for result in left_out["results"]) and not left_out["ok"]
    assert (tmp_path / "verdict.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 failed of 0; ")


def test_every_result_is_written_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, seen = tmp_path / "verdict.json", list[int]()

    def part(name: str, _: Any, seconds: float, record: Any, hanging: float) -> None:
        record(Result(name, "one", True, float("nan"), 1.0))
        text = file.read_text()
        assert "NaN" not in text
        seen.append(len(json.loads(text)["results"]))

    monkeypatch.setattr(command, "run_part", part)
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", "--json", str(file)])
    assert command.main() == 0
    assert seen == [1, 2] and not list(tmp_path.glob(".*"))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("torch", "no_such_a", "no_such_b"))
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse"])
    with pytest.raises(SystemExit, match="has no no_such_a, no_such_b; install what is missing"):
        command.main()


@pytest.mark.slow  # two minutes
def test_the_rehearsal_on_a_cpu_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "verdict.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", "--json", str(file), "--minutes", "14"])
    assert command.main() == 0, file.read_text()
    outcome = json.loads(file.read_text())
    assert outcome["ok"] and outcome["checked"] >= 50 and not outcome["failed"]
    assert {result["part"] for result in outcome["results"]} == set(command.PARTS)
    names = {result["name"] for result in outcome["results"]}
    assert {"tiny against transformers", "tiny against plain", "tiny full", "tiny ours, muon", "served texts"} <= names
    assert {"tiny autotuned", "fp8 products"} <= names
    assert {f"fp8 rowwise llama {what}" for what in ("loss", "gradients")} | {"fp8 tensorwise gpt2 compiled"} <= names
