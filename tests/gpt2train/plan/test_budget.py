"""Depth and tokens for a budget, and the command that shows them."""

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config.recipe import horizon, modern
from gpt2train.errors import UserError
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
from gpt2train.plan.devices import Gpu
from gpt2train.plan.hardware import Hardware


def chosen(budget: str, cores: int = 2) -> Recipe:
    return choose_recipe("modern", None, budget, lambda: cpu_rate(cores))


@pytest.mark.parametrize("flops", [3e15, 1e18, 2.5e19, 1e21])
def test_a_budget_is_spent_on_the_largest_depth_whose_own_tokens_it_pays(flops: float) -> None:
    recipe = chosen(str(flops))
    assert recipe.flops == pytest.approx(flops, rel=0.001)
    assert horizon(recipe.depth) <= recipe.tokens
    larger = recipe.depth + 2
    assert horizon(larger) * cost_of_token(larger) > flops
    assert recipe.settings == modern(recipe.depth, recipe.tokens)


def test_a_small_budget_buys_fewer_tokens_of_the_smallest_model() -> None:
    recipe = chosen("1e13")
    assert recipe.depth == 2 and recipe.tokens < horizon(2)
    assert recipe.flops == pytest.approx(1e13, rel=0.001)


def test_a_time_is_the_flops_of_the_devices_in_that_time() -> None:
    two_cores = 2 * 60e9 * 8 * 3600
    assert chosen("8h") == chosen(str(two_cores))
    assert chosen("480m") == chosen("8H")
    assert chosen("8h", cores=64).depth > chosen("8h").depth


def test_the_speed_of_this_machine_is_that_of_its_gpus_if_each_process_has_one() -> None:
    gpus = [Gpu(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", 80.0) for index in range(2)]
    launch = {"nodes": 2, "threads": 1, "cores": 16}
    assert machine_rate(gpus, processes=2, **launch)("bf16") == gpu_rate(Hardware(gpus=4))("bf16")
    assert machine_rate(gpus, processes=4, **launch)("fp32") == cpu_rate(8)("fp32")


@pytest.mark.parametrize("text", ["8x", "", "h", "-1h", "1e", "0", "-1e18", "inf", "nan", "8 hours", "1s"])
def test_a_budget_that_is_neither_time_nor_flops_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is neither a time \(90m, 8h, 2d\) nor FLOPs \(1e18\) nor a goal \(gpt2\)"):
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
