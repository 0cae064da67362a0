"""Depth and tokens for a budget, visible GPUs of a process, and whether the resources are enough for a run."""

import stat
from pathlib import Path

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings, preset
from gpt2train.config.recipe import horizon, modern
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count
from gpt2train.plan.budget import (
    GOALS,
    Recipe,
    choose_recipe,
    cost_of_token,
    cpu_rate,
    gpu_rate,
    machine_rate,
    read_budget,
)
from gpt2train.plan.devices import Gpu, find_gpus, parse, visible_of
from gpt2train.plan.fit import duration, estimate_resources, missing_resources
from gpt2train.plan.hardware import Hardware
from gpt2train.settings import build


def chosen(budget: str, cores: int = 2) -> Recipe:
    return choose_recipe("modern", None, budget, lambda: cpu_rate(cores))


def test_a_budget_is_spent_on_the_largest_depth_whose_own_tokens_it_pays() -> None:
    """A small one buys fewer tokens of the smallest model; a time is the FLOPs of the devices in that time."""
    for flops in (1e13, 3e15, 1e18, 2.5e19, 1e21):
        recipe = chosen(str(flops))
        assert recipe.flops == pytest.approx(flops, rel=0.001)
        assert (horizon(recipe.depth) <= recipe.tokens) == (flops > 1e13)
        larger = recipe.depth + 2
        assert horizon(larger) * cost_of_token(larger) > flops
        assert recipe.settings == modern(recipe.depth, recipe.tokens)
    assert chosen("1e13").depth == 2
    two_cores = 2 * 60e9 * 8 * 3600
    assert chosen("8h") == chosen(str(two_cores))
    assert chosen("480m") == chosen("8H")
    assert chosen("8h", cores=64).depth > chosen("8h").depth


def test_the_speed_of_this_machine_is_that_of_its_gpus_if_each_process_has_one() -> None:
    gpus = [Gpu(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", 80.0) for index in range(2)]
    launch = {"nodes": 2, "threads": 1, "cores": 16}
    assert machine_rate(gpus, processes=2, **launch)("bf16") == gpu_rate(Hardware(gpus=4))("bf16")
    assert machine_rate(gpus, processes=4, **launch)("fp32") == cpu_rate(8)("fp32")


def test_a_budget_that_is_neither_time_nor_flops_is_refused() -> None:
    said = r"is neither a time \(90m, 8h, 2d\) nor FLOPs \(1e18\) nor a goal \(gpt2\)"
    for text in ("8x", "", "h", "-1h", "1e", "0", "-1e18", "inf", "nan", "8 hours", "1s"):
        with pytest.raises(UserError, match=said):
            read_budget(text)


def test_the_plan_of_a_budget_says_what_comes_out_and_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["plan", "--recipe", "modern", "--budget", "8h", "--cores", "2"]) == 0
    text = capsys.readouterr().out
    assert "model: depth 4, width 256, 4 heads of 64" in text
    assert "8 hours on 2 CPU cores" in text and "warm-down" in text


def test_plan_and_config_have_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["plan", "--recipe", "modern", "--depth", "12", "--rows", "1", "--no-simulate"]) == 0
    plan = capsys.readouterr().out
    assert run_command(app, ["config", "--recipe", "modern", "--depth", "12"]) == 0
    recipe = capsys.readouterr().out
    assert run_command(app, ["config", "--preset", "modern-12"]) == 0
    assert recipe.replace("recipe modern-12", "preset modern-12") == capsys.readouterr().out
    assert "steps = 18853\n" in recipe and "18,853 steps" in plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "modern", "--depth", "0"], "--depth 0: the recipe has 1 to 128 blocks"),
        (["--recipe", "modern", "--budget", "8x"], "--budget 8x is neither a time"),
        (["--recipe", "modern", "--depth", "12", "--budget", "8h"], "has both --depth and --budget"),
        (["--recipe", "modern"], "is without a size"),
        (["--recipe", "modrn", "--depth", "2"], "did you mean 'modern'?"),
        (["--depth", "12"], "--depth 12 is for a recipe"),
        (["--budget", "8h"], "--budget 8h is for a recipe"),
        (["--recipe", "modern", "--depth", "2", "--preset", "345m"], "leave one out"),
        (["--recipe", "modern", "--budget", "1e9"], "buys 154 tokens"),
        (["--recipe", "modern", "--budget", "1e60"], "--budget 1e60 is more than 100 times what the deepest model"),
        (["--recipe", "modern", "--budget", "9" * 30 + "d"], "FLOPs on these devices, is more than 100 times what"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "config"])
def test_a_mistake_is_one_line(
    command: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, [command, *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_goal_is_a_budget_and_the_plan_shows_its_range_and_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, goal = chosen("gpt2"), GOALS["gpt2"]
    assert recipe.depth == 26 and recipe.flops == pytest.approx(goal.flops, rel=0.001)
    command = ["plan", "--recipe", "modern", "--goal", "gpt2", "--price", "3", "--no-simulate", "--rows", "1"]
    assert run_command(app, command) == 0
    text = " ".join(capsys.readouterr().out.split())
    hours = goal.flops / (8 * 989e12 * 0.45) / 3600
    assert f"{hours * 24:,.0f} at 3 for a GPU hour" in text
    assert "not measured here: 1.5e+20 FLOPs, and between 4.3e+19 (3 hours) and 2.0e+20" in text
    assert "best: python -m flows.pretrain --recipe modern --budget gpt2 " in text


SAID = """0, GPU-aa11, NVIDIA H200, 143771
1, GPU-bb22, NVIDIA H100 80GB HBM3, 81559
2, GPU-bc33, "Odd, Name", [N/A]
"""


def test_the_output_of_nvidia_smi_is_parsed() -> None:
    first, second, odd = parse(SAID + "No devices were found\n")
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa11", "NVIDIA H200")
    assert first.memory == pytest.approx(150.75, abs=0.01)
    assert (first.tflops, second.tflops, odd.tflops) == (989, 989, None)
    assert odd.name == "Odd, Name"
    assert odd.memory > 0
    # CUDA_VISIBLE_DEVICES selects some; for CUDA what follows an entry that names none is hidden.
    selected = {None: [0, 1, 2], "1": [1], "2, 0": [2, 0], "0,9,1": [0], "-1": [], "0,0": [0], "GPU-": []}
    for visible, kept in (selected | {"GPU-bb22,0": [1, 0], "GPU-aa": [0]}).items():
        assert [gpu.index for gpu in visible_of(parse(SAID), visible)] == kept, visible


def test_nvidia_smi_is_run_and_its_failure_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'E'\n{SAID}E\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [gpu.index for gpu in find_gpus({})] == [0, 1, 2]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    tool.write_text("#!/bin/sh\necho driver not loaded >&2\nexit 9\n")
    assert find_gpus({}) == ()


H200 = tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200", 150.8) for n in range(8))
SMALL = tuple(Gpu(n, f"GPU-{n}", "NVIDIA L4", 8.0) for n in range(2))


def settings_of(name: str, **changes: object) -> TrainSettings:
    return build(TrainSettings, preset(name), changes)


def test_all_missing_resources_of_a_large_model_on_a_cpu_are_listed() -> None:
    settings = settings_of("345m")
    fit = estimate_resources(settings, 50257, (), processes=8, cores=2)
    gpus, time, memory = missing_resources(fit, settings)
    assert gpus == "8 GPUs (none found)"
    assert "years on this CPU" in time
    assert memory.startswith("memory (")
    forced = settings_of("345m", device="cpu")
    assert missing_resources(estimate_resources(forced, 50257, (), processes=8, cores=2), forced) == []


def test_a_small_model_fits() -> None:
    settings = settings_of("tiny")
    fit = estimate_resources(settings, 4096, (), processes=2, cores=2)
    assert missing_resources(fit, settings) == []
    assert not fit.on_gpu
    # Measured on two quiet cores: 3,783 tokens/s a core (docs/develop/benchmarks.md).
    assert fit.tokens / fit.hours / 3600 == pytest.approx(2 * 3783, rel=0.25)
    assert fit.checkpoints == 4 * 12 * fit.parameters  # two kept, the best, the one that is written
    # Another family is estimated by its own parameters.
    llama = settings_of("tiny", model={"family": "llama", "options": {"inner": 1024}})
    fit = estimate_resources(llama, 4096, (), processes=2, cores=2)
    assert fit.parameters == parameter_count(llama.model.shape(4096))


def test_too_few_or_too_small_gpus_are_reported() -> None:
    settings = settings_of("345m")
    assert missing_resources(estimate_resources(settings, 50257, H200, processes=8, cores=64), settings) == []
    gpus, _time, *_ = missing_resources(estimate_resources(settings, 50257, H200[:4], processes=8, cores=2), settings)
    assert gpus == "8 GPUs (4 found)"
    [memory] = missing_resources(estimate_resources(settings, 50257, SMALL, processes=2, cores=2), settings)
    assert memory.startswith("GPU memory (") and memory.endswith("7.4 GB available)")


def test_the_time_on_gpus_scales_with_their_number() -> None:
    settings = settings_of("345m")
    one = estimate_resources(settings, 50257, H200[:1], processes=1, cores=16)
    eight = estimate_resources(settings, 50257, H200, processes=8, cores=16)
    assert 6 < one.hours / eight.hours < 8.5
    assert one.tokens == 20_000 * 512 * 1024
    assert "989 TFLOP/s" in one.basis
    guessed = estimate_resources(settings, 50257, (Gpu(0, "x", "Something New", 80.0),), processes=1, cores=16)
    assert "a guess" in guessed.basis


def test_epochs_need_the_number_of_tokens() -> None:
    settings = settings_of("tiny", epochs=2)
    unknown = estimate_resources(settings, 4096, (), processes=2, cores=2)
    assert (unknown.steps, unknown.tokens, unknown.hours) == (None, None, None)
    assert unknown.checkpoints == 4 * 12 * unknown.parameters and missing_resources(unknown, settings) == []
    known = estimate_resources(settings, 4096, (), processes=2, cores=2, per_epoch=3906)
    assert known.steps == -(-2 * 3906 // 8)  # samples in steps of 8
    assert known.tokens == known.steps * 8 * 256
    plain = estimate_resources(settings_of("tiny", steps=known.steps), 4096, (), processes=2, cores=2)
    assert known.hours == plain.hours


def test_durations_are_formatted() -> None:
    said = {0.001: "1 minute", 1.0: "60 minutes", 30: "30 hours", 240: "10 days", 87600: "10 years"}
    assert {hours: duration(hours) for hours in said} == said
