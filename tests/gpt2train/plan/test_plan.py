"""Plans: layouts, parameter counts of the reference, the command; budgets, visible GPUs, the resources of a run."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings, preset
from gpt2train.config.recipe import horizon, modern
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.pipeline_stages import stage_layers
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
from gpt2train.plan.duration import step_time
from gpt2train.plan.fit import duration, estimate_resources, missing_resources
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.parameters import Piece, parameters, pieces
from gpt2train.plan.search import Candidate, GivenLayout, Plan, offload_of, order, search, shown
from gpt2train.settings import build

M345 = Shape(50257, 24, 16, 1024, 1024)
SAID = """0, GPU-aa11, NVIDIA H200, 143771
1, GPU-bb22, NVIDIA H100 80GB HBM3, 81559
2, GPU-bc33, "Odd, Name", [N/A]
"""
H200 = tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200", 150.8) for n in range(8))
SMALL = tuple(Gpu(n, f"GPU-{n}", "NVIDIA L4", 8.0) for n in range(2))


@pytest.mark.parametrize(("name", "parallel", "micro_batch", "published"), [
    ("1542m", {"zero": 2}, 16, 2.80),  # llm.c, 1,558M on 8 H100, its stream in bf16
    ("345m", {"zero": 0}, 32, 0.698),  # the 46 % of a single one, by 8
])  # fmt: skip
def test_the_time_of_a_step_is_near_what_llm_c_published(
    name: str, parallel: dict[str, int], micro_batch: int, published: float
) -> None:
    batch = {"micro_batch": micro_batch, "global_batch": 1024}  # 1,048,576 tokens
    changes = {"parallel": parallel, "batch": batch, "performance": {"stream": "bf16"}}
    settings = build(TrainSettings, preset(name), changes)
    shape = settings.model.shape(50257)
    time = step_time(settings, shape, Layout.of(settings, 8), pieces(settings, shape), Hardware())
    assert time.total == pytest.approx(published, rel=0.15)


def test_what_does_not_overlap_is_counted() -> None:
    """The gather of the first block at least; with few tokens to compute also the rest."""
    batch = {"micro_batch": 1, "global_batch": 8}
    found = {}
    for link in (450.0, 1.0):
        settings = build(TrainSettings, preset("345m"), {"parallel": {"zero": 3}, "batch": batch})
        shape, hardware = settings.model.shape(50257), Hardware(link=link)
        found[link] = step_time(settings, shape, Layout.of(settings, 8), pieces(settings, shape), hardware).data
    whole = 7 / 8 * (4 + 2 * 2) * 355e6 / 1e9  # seconds at 1 GB/s: gradients reduced, halves gathered twice
    assert 0 < found[450.0] < whole / 450 < 0.9 * whole < found[1.0]


def test_parameters_of_each_rank_equal_those_of_the_tutorial() -> None:
    """Megatron-LM's padding (to a multiple of 128 x tp) and equal stages are used, unlike in the engine."""

    def counts(tp: int, pp: int) -> list[int]:
        parts = [Piece(24 // pp, rank == 0, rank == pp - 1) for rank in range(pp)]
        return [parameters(part, M345, tp, padding=128 * tp) for part in parts]

    assert counts(1, 1) == [354_871_296]
    assert counts(2, 2) == [102_483_968, 101_437_440]
    assert counts(4, 1) == [89_714_688]
    assert counts(1, 4) == [128_137_216, 75_577_344, 75_577_344, 127_090_688]


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(12, 24), st.integers(2, 60_000), st.integers(1, 3))
def test_the_ranks_hold_the_model_once_and_the_tied_embedding_twice(
    tp: int, pp: int, layers: int, vocab: int, stages: int
) -> None:
    shape = Shape(vocab, layers, 8, 64, 128)
    schedule = "interleaved" if stages > 1 else "1f1b"
    parallel = {"tp": tp, "pp": pp, "virtual_pipeline_stages": stages, "schedule": schedule}
    model = {"layers": layers, "heads": 8, "hidden": 64}
    settings = build(TrainSettings, {"model": model, "parallel": parallel})
    held = sum(parameters(piece, shape, tp) for piece in pieces(settings, shape)) * tp
    tied = shape.padded_vocab * 64 if pp > 1 else 0
    whole_on_each = (tp - 1) * (shape.context * 64 + layers * 6 * 64 + 2 * 64)
    assert held == parameter_count(shape) + tied + whole_on_each


@pytest.mark.slow
def test_a_small_model_on_large_gpus_is_data_parallel() -> None:
    settings = build(TrainSettings, preset("345m"))
    found = search(settings, M345, Hardware(gpus=8, memory=80))
    best = found.fits[0].settings.parallel
    assert (best.tp, best.pp, best.cpu_offload, best.activation_checkpointing) == (1, 1, False, "none")
    rates = [shown(one.rate) for one in found.fits]  # ties are ordered by simplicity
    assert rates == sorted(rates, reverse=True)
    assert all(one.memory.device <= 80e9 for one in found.fits)
    keys = {(p.tp, p.pp, p.zero, offload_of(p)) for p in (one.settings.parallel for one in found.fits)}
    assert len(keys) == len(found.fits)


def test_a_model_that_does_not_fit_is_offloaded_and_the_reasons_are_given() -> None:
    settings = build(TrainSettings, preset("1542m"), {"performance": {"stream": "fp32"}})
    shape = Shape(50257, 48, 25, 1600, 1024)
    found = search(settings, shape, Hardware(gpus=1, memory=24))
    placements = {offload_of(one.settings.parallel): one for one in found.fits}
    assert list(placements) == ["auto", "optimizer", "all"]  # the fastest first
    auto, optimizer, best = placements.values()
    assert auto.memory.device > optimizer.memory.device > best.memory.device
    assert auto.memory.on_cpu + auto.memory.device == pytest.approx(optimizer.memory.on_cpu + optimizer.memory.device)
    whole = 4 * best.parameters[0]
    assert optimizer.memory.on_cpu == optimizer.memory.copies == 2 * whole  # both moments; weights and gradients
    assert best.memory.gathered < 0.6 * whole  # two blocks, the embeddings, and the half-precision copies
    assert best.memory.on_cpu == 4 * whole  # weights, gradients, both moments
    assert any("ZeRO 0: more than 22.1 GB" in reason for reason, _ in found.refused)
    found = search(settings, shape, Hardware(gpus=4, memory=24))
    assert {one.settings.parallel.tp for one in found.fits} == {1, 2, 4}  # also degrees that do not divide 25 heads
    assert any(one.settings.parallel.pp > 1 for one in found.fits)


def test_heads_that_the_degree_does_not_divide_cost_time_and_memory() -> None:
    hardware = Hardware(gpus=8, memory=80)
    given = GivenLayout(tp=8, pp=1, zero=0, micro_batch=4, activation_checkpointing="none")
    found = {}
    for heads in (25, 32):  # equal matrices
        settings = build(TrainSettings, preset("1542m"), {"model": {"heads": heads}})
        found[heads] = search(settings, Shape(50257, 48, heads, 1600, 1024), hardware, given).fits[0]
    uneven, even = found[25], found[32]
    assert uneven.parameters == even.parameters
    assert 1.05 < uneven.duration.compute / even.duration.compute < 4 / 3.125
    assert 1 < uneven.duration.tensor / even.duration.tensor < 1.05
    assert 1.02 < uneven.memory.activations / even.memory.activations < 4 / 3.125
    equal = replace(uneven, duration=even.duration)
    assert order(even) < order(equal)  # among equals a degree that divides the heads


@pytest.mark.parametrize(
    ("tp", "pp", "micro", "batch", "expected"),
    [
        (1, 1, 1, 8, [354_871_296]),
        (1, 4, 2, 8, [140_733_440, 88_173_568, 88_173_568, 89_302_016]),  # the head weighs as layers
        (4, 1, 2, 8, [89_616_384]),  # the vocabulary is padded to a multiple of 128 on every layout
        (2, 2, 4, 16, [115_020_800, 88_769_536]),
    ],
)
def test_a_given_layout_is_the_only_one(tp: int, pp: int, micro: int, batch: int, expected: list[int]) -> None:
    """The rows of the table in docs/train/plan.md; without tensor parallelism they are those of the engine's models."""
    settings = build(TrainSettings, preset("megatron-345m"), {"batch": {"global_batch": batch}})
    given = GivenLayout(tp=tp, pp=pp, zero=0, micro_batch=micro, activation_checkpointing="none")
    best, *others = search(settings, M345, Hardware(gpus=4, gpus_per_node=4), given).fits
    assert list(best.parameters) == expected
    with torch.device("meta"):
        built = [GPT2(M345).keep_layers(layers) for layers in stage_layers(M345, pp)]
    assert tp > 1 or [sum(p.numel() for p in part.parameters()) for part in built] == expected
    assert (best.layout.tp, best.layout.pp, best.layout.micro_batch, best.layout.global_batch) == (tp, pp, micro, batch)
    parallel = best.settings.parallel
    assert (parallel.zero, parallel.cpu_offload, parallel.activation_checkpointing) == (0, False, "none")
    assert len(best.memories) == pp and best.memory in best.memories
    assert all(one.settings.parallel.cpu_offload for one in others)


@pytest.mark.parametrize(("name", "gpus", "samples"), [("colossalai-gpt2-small", 4, 8), ("cpm-gpt2", 8, 128)])
def test_an_open_batch_is_that_of_the_presets_own_layout(name: str, gpus: int, samples: int) -> None:
    """Else a layout with few data-parallel processes has the shortest step, since it does the least in it."""
    settings = build(TrainSettings, preset(name))
    found = search(settings, settings.model.shape(50257), Hardware(gpus=gpus))
    assert {one.layout.global_batch for one in found.fits} == {samples}
    assert found.fits[0].rate > 0.999 * max(one.rate for one in found.fits)
    assert found.fits[0].layout.data == gpus  # of so small a model


def test_only_settings_that_can_be_trained_are_planned() -> None:
    """Muon has no offload of its own, which the settings refuse."""
    settings = build(TrainSettings, preset("modern-12"))
    found = search(settings, settings.model.shape(32_768), Hardware(gpus=1, memory=4))
    assert found.fits
    assert {offload_of(one.settings.parallel) for one in found.fits} <= {"none", "all"}


def alone(memory: float, performance: dict[str, object], micro_batch: int | None) -> tuple[Plan, Candidate | None]:
    """A plan of 117M on one GPU, and its layout without offload and recomputation."""
    settings = build(TrainSettings, preset("117m"), {"performance": performance})
    given = GivenLayout(zero=0, micro_batch=micro_batch, activation_checkpointing="none")
    found = search(settings, settings.model.shape(50257), Hardware(gpus=1, memory=memory), given)
    return found, next((one for one in found.fits if not one.settings.parallel.cpu_offload), None)


def test_the_stream_of_a_run_on_a_gpu_is_planned_in_half_precision() -> None:
    plans = {stream: alone(1000, {"stream": stream}, 32)[1] for stream in ("auto", "fp32", "bf16")}
    costs = {stream: (one.device, one.duration.total) for stream, one in plans.items() if one is not None}
    assert costs["auto"] == costs["bf16"] < costs["fp32"]
    assert costs["auto"][1] < costs["fp32"][1]


def test_the_logits_are_as_many_as_compiled_code_has_memory_for(capsys: pytest.CaptureFixture[str]) -> None:
    def enough_for(performance: dict[str, object]) -> float:
        _, found = alone(1000, performance, 32)
        assert found is not None
        return found.device / GB / (1 - Hardware().reserve) + 1e-6

    def rows(memory: float) -> int | None:
        _, found = alone(memory, {}, 32)
        return found and found.settings.performance.loss_chunk

    large, small = enough_for({}), enough_for({"loss_chunk": 8_192})
    plain = enough_for({"compile": "off"})
    assert small < large and plain == enough_for({"compile": "off", "loss_chunk": 8_192})
    found = [rows(memory) for memory in (1.01 * large, 0.99 * large, 1.01 * small, 0.99 * small)]
    assert found == [16_384, 8_192, 8_192, None]
    flags = ["--preset", "117m", "--gpus", "1", "--micro-batch", "32", "--activation-checkpointing", "none"]
    for memory, flag in ((1.01 * large, False), (1.01 * small, True)):
        assert run_command(app, ["plan", *flags, "--memory", f"{memory:.6f}GB", "--no-simulate"]) == 0
        out = capsys.readouterr().out
        assert ("--train.performance.loss-chunk 8192" in out) is flag
        assert f" ~{memory / 1.01 * 0.92:.1f} " in out and "largest micro-batch" not in out


def test_no_larger_micro_batch_fits_than_the_one_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for memory in (12.0, 24.0, 80.0):
        found, first = alone(memory, {}, None)
        assert first is not None
        largest = found.largest_of(first, Hardware(gpus=1, memory=memory))
        assert largest.key == first.key and largest.layout.micro_batch >= first.layout.micro_batch
        assert largest.device <= memory * GB * (1 - Hardware().reserve)
        _, larger = alone(memory, {}, 2 * largest.layout.micro_batch)
        assert larger is None or largest.layout.micro_batch == 64
    flags = ["--preset", "117m", "--gpus", "1", "--activation-checkpointing", "none", "--zero", "0", "--no-simulate"]
    assert run_command(app, ["plan", *flags]) == 0
    line = f"largest micro-batch of the first layout that fits: 64 (~{largest.device / GB:.1f} GB)\n"
    assert line in capsys.readouterr().out


def test_longer_positions_change_the_parameters_alone() -> None:
    short = build(TrainSettings, preset("345m"), {"model": {"context": 512}})
    table = build(TrainSettings, preset("345m"), {"model": {"context": 512, "max_positions": 1024}})
    given = GivenLayout(tp=1, pp=1, zero=1, micro_batch=8, activation_checkpointing="none")
    pairs = [(one, Shape(50257, 24, 16, 1024, one.model.positions)) for one in (short, table)]
    plain, larger = (search(one, shape, Hardware(gpus=8), given).fits[0] for one, shape in pairs)
    assert larger.parameters[0] - plain.parameters[0] == 512 * 1024
    assert larger.duration.total == pytest.approx(plain.duration.total, rel=0.01)
    assert larger.memory.activations == plain.memory.activations


@pytest.mark.slow
def test_slow_links_rule_out_tensor_parallelism() -> None:
    settings = build(TrainSettings, preset("345m"))

    def slowdown(link: float) -> float:
        fits = search(settings, M345, Hardware(gpus=4, gpus_per_node=4, link=link)).fits
        seconds = {(one.layout.tp, one.layout.pp): one.duration.total for one in reversed(fits)}  # the best comes last
        return seconds[(4, 1)] / seconds[(1, 1)]

    assert 1 < slowdown(450) < 1.6 < 2 < slowdown(12)  # NVLink 4, PCIe 4


def test_the_command_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--preset", "345m", "--gpus", "2", "--memory", "80GB", "--rows", "3", "--no-simulate"]
    assert run_command(app, ["plan", *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith("354,871,296 parameters on 2 x 80 GB")
    assert " hours " in out.splitlines()[1]
    assert "best: " in out and "--train.batch.micro-batch" in out
    given = ["--preset", "megatron-345m", "--tp", "2", "--pp", "2", "--micro-batch", "4", "--global-batch", "16"]
    assert run_command(app, ["plan", "--gpus", "4", *given, "--zero", "0", "--no-simulate"]) == 0
    out = capsys.readouterr().out
    assert "115,020,800" in out and "88,769,536" in out and "pp rank" in out
    for flags, message in (
        (["--tp", "2", "--memory", "0.1GB"], "no layout with tp 2 fits 2 x 0.1 GB"),
        (["--tp", "3"], "no layout with tp 3 is possible on 2 GPUs: tp 3 x pp 1 = 3 does not divide the 2 GPUs;"),
        (["--zero", "4"], "less than or equal to 3"),
        (["--memory", "0.1GB"], "no layout fits 2 x 0.1 GB; give more GPUs or more memory"),
        (["--memory", "plenty"], "--memory 'plenty' is not an amount of memory; write it as 80GB"),
        (["--preset", "345"], "did you mean '345m'?"),
        (["--memory", "0GB"], "greater than 0"),
    ):
        assert run_command(app, ["plan", "--gpus", "2", *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan", "--gpus", "2", "--no-simulate"], ["simulate", "--dp", "2"]])
def test_a_runs_file_is_settings_too(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["config", "--preset", "tiny", "--vocab", "1000"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    assert run_command(app, [*command, "--preset", "tiny", "--vocab", "1000"]) == 0
    expected = capsys.readouterr().out.split("best: ")[0]
    assert run_command(app, [*command, "--config", str(tmp_path / "run.toml")]) == 0
    printed, *best = capsys.readouterr().out.split("best: ")  # that of a run's file is for torchrun
    assert printed == expected and [line.split()[0] for line in best] == ["torchrun"][: len(best)]


def test_the_command_plans_a_model_of_another_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('[model]\nfamily = "llama"\noptions = { kv_heads = 4, tied = true }\n')
    flags = ["--config", str(tmp_path / "run.toml"), "--gpus", "4", "--rows", "1", "--no-simulate"]
    assert run_command(app, ["plan", *flags]) == 0
    model = {"family": "llama", "options": {"kv_heads": 4, "tied": True}}
    settings = build(TrainSettings, preset("345m"), {"model": model})
    assert f"{parameter_count(settings.model.shape(50_257)):,} parameters on 4 x" in capsys.readouterr().out


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
