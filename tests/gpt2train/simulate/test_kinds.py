"""Simulated steps of every kind of layout and model, and the schedules of their stages."""

import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpt2train.config import RunConfig, TrainSettings
from gpt2train.errors import UserError
from gpt2train.monitoring.memory_report import peak_resident
from gpt2train.parallel.layout import Layout
from gpt2train.plan.duration import step_time
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.parameters import matrix_parameters, parameters, pieces
from gpt2train.plan.simulation import simulated
from gpt2train.settings import build, layer
from gpt2train.simulate.kinds import all_kinds, kind_of
from gpt2train.simulate.rank import simulate_rank
from gpt2train.simulate.recorder import CATEGORIES
from gpt2train.simulate.schedule import Kind, PassMemory, Profile, kinds, passes, peak, repeated_passes
from tests.gpt2train.simulate.against import LiveBytes, run


def many(parallel: dict[str, Any], micro_batches: int, layers: int) -> RunConfig:
    changes = {
        "model": {"layers": layers, "hidden": 32, "context": 32},
        "batch": {"micro_batch": 1, "global_batch": micro_batches},
        "parallel": parallel,
    }
    return run(Path("none"), changes, 1)


def test_one_process_matches_a_step_of_the_engine(tmp_path: Path) -> None:
    import torch

    from gpt2train.parallel.mesh import DistContext, join
    from gpt2train.simulate.rank import empty_batch
    from gpt2train.training.engine import Engine

    config = run(tmp_path, {}, 1)
    simulated = simulate_rank(config, 1, 0)
    join("cpu")
    try:
        engine = Engine(config, DistContext(0, 1, torch.device("cpu")))
        batches = [empty_batch(config, engine.layout.micro_batch) for _ in range(engine.layout.accumulation)]
        live = LiveBytes()
        for tensor in engine.state().values():
            live.add(tensor)
        with live:
            engine.update(engine.measure(engine.accumulate(batches, 1, 1), 1, 1.0, False), 1e-3)
    finally:
        torch.distributed.destroy_process_group()
    assert simulated.peak == pytest.approx(live.peak, rel=0.05)
    assert simulated.memory["parameters"] == 4 * simulated.parameters
    assert simulated.memory["optimizer"] == pytest.approx(8 * simulated.parameters, rel=0.01)


def test_micro_batches_beyond_the_third_are_counted() -> None:
    few, more = (simulate_rank(many({}, number, 2), 1, 0) for number in (3, 7))
    assert more.counts.flops / few.counts.flops == pytest.approx(7 / 3, rel=1e-6)
    batch = 2 * 32 * 8  # tokens and targets of a micro-batch
    assert more.peak == few.peak + 4 * batch


def test_many_micro_batches_take_no_memory() -> None:
    number, config = 1 << 16, many({}, 1 << 16, 2)
    config = config.model_copy(update={"model": config.model.model_copy(update={"context": 1024})})
    before = peak_resident()
    assert simulate_rank(config, 1, 0).peak > number * 2 * 1024 * 8  # tokens and targets: 1 GB
    assert peak_resident() - before < 256 << 20


VALUES = {"family": "llama", "layers": 10, "hidden": 32, "context": 32, "options": {"value_embeddings": 3}}
PIPELINES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "1f1b": ({"pp": 5}, 12, {}),
    "gpipe": ({"pp": 5, "schedule": "gpipe"}, 12, {}),
    "as many as stages": ({"pp": 4}, 4, {}),
    "one more than stages": ({"pp": 5, "zero": 0}, 6, {}),
    "gpipe, few": ({"pp": 2, "schedule": "gpipe"}, 2, {}),
    "gpipe, zero 3": ({"pp": 3, "schedule": "gpipe", "zero": 3}, 6, {}),
    "interleaved, zero 3": ({"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 3, "zero": 3}, 8, {}),
    "interleaved": ({"pp": 3, "schedule": "interleaved", "virtual_pipeline_stages": 2}, 12, {}),
    "interleaved, 3 stages": ({"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 3}, 8, {}),
    "zero 3": ({"pp": 3, "zero": 3}, 6, {}),
    "zero 1, tp": ({"pp": 3, "zero": 1, "tp": 2}, 6, {}),
    "offload": ({"pp": 3, "zero": 3, "cpu_offload": True}, 6, {}),
    "checkpointing": ({"pp": 3, "activation_checkpointing": "full"}, 7, {}),
    "llama": ({"pp": 3}, 7, {"model": {"family": "llama", "layers": 10, "hidden": 32, "context": 32}}),
    "value embeddings": ({"pp": 4}, 7, {"model": VALUES}),
    "value embeddings, interleaved": (
        {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 3},
        8,
        {"model": VALUES},
    ),
    "t5": ({"pp": 6}, 9, {"model": {"family": "t5", "layers": 10}, "objective": {"name": "span_corruption"}}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PIPELINES)
def test_a_schedule_put_together_costs_what_the_whole_one_does(name: str) -> None:
    parallel, micro_batches, changes = PIPELINES[name]
    world = parallel["pp"] * parallel.get("tp", 1) * (2 if "zero" in parallel else 1)
    data = world // parallel["pp"] // parallel.get("tp", 1)
    plain = many(parallel, micro_batches * data, 10)
    config = build(RunConfig, layer(plain.model_dump(), changes))
    for kind in all_kinds(config, world):
        whole = simulate_rank(config, world, kind.rank)
        # What a pass of one stage gathers anew depends on the last passes of the others, of which a kind knows one.
        bound = 0.03 if name == "interleaved, zero 3" else 0.02
        assert kind.step.peak == pytest.approx(whole.peak, rel=bound), (kind.stage, kind.step.memory, whole.memory)
        assert kind.step.counts == whole.counts, kind.stage


@pytest.mark.exhaustive
def test_a_large_model_on_4096_ranks_takes_less_than_4_gb() -> None:
    import resource

    changes = {
        "model": {"layers": 96, "heads": 96, "hidden": 12288, "context": 2048},
        "batch": {"micro_batch": 1, "global_batch": 1536},
        "parallel": {"tp": 8, "pp": 16, "zero": 1},
        "device": "auto",
        "vocab": 50257,
    }
    kind = kind_of(build(RunConfig, run(Path("none"), changes, 32).model_dump()), 4096, 256)
    assert len(kind.blocks) in (6, 7)
    assert kind.ranks == 256
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4e6


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (4, {"tp": 2, "zero": 1}),
        pytest.param(8, {"tp": 4, "zero": 2}, marks=pytest.mark.slow),
        pytest.param(8, {"tp": 2, "zero": 3, "dp_shard_degree": 2}, marks=pytest.mark.slow),
        pytest.param(16, {"tp": 2, "pp": 2, "zero": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_step_with_muon_sends_at_most_one_all_gather_of_the_matrices_more_than_with_adamw(
    world: int, parallel: dict[str, Any]
) -> None:
    changes = {"parallel": parallel, "batch": {"micro_batch": 2, "global_batch": 64}, "precision": "fp32"}
    sent = {}
    for name in ("adamw", "muon"):
        config = run(Path("none"), changes | {"optimizer": {"name": name}}, world)
        sent[name] = sum(simulate_rank(config, world, 0).counts.bytes.values())
    layout, part = Layout.of(config, world), pieces(config, config.shape)[0]
    matrices = 4 * matrix_parameters(part, config.shape, 1)
    assert 0 < sent["muon"] - sent["adamw"] <= matrices, layout


def test_a_layout_that_does_not_fit_is_one_line_as_in_a_training() -> None:
    with pytest.raises(UserError, match=r"tp 3 does not divide the size 32 of .*proj.weight; .* can be 1, 2, 4$"):
        all_kinds(many({"tp": 3}, 12, 2), 3)


COMMAND = ["simulate", "--preset", "1542m", "--tp", "8", "--pp", "8", "--dp", "16"]


def measured(folder: Path, *options: str) -> tuple[int, dict[str, Any], float, int]:
    with (folder / "out.json").open("w") as out:
        job = subprocess.Popen([sys.executable, "-m", "gpt2train", *COMMAND, *options, "--json"], stdout=out)
    _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    found = json.loads((folder / "out.json").read_text())
    return job.returncode, found, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


@pytest.mark.slow
def test_25_heads_on_8_tensor_parallel_ranks_take_less_than_a_minute_and_4_gb(tmp_path: Path) -> None:
    code, found, seconds, kilobytes = measured(tmp_path)
    assert (code, found["layout"]) == (0, {"tp": 8, "pp": 8, "dp": 16, "ranks": 1024})
    assert seconds < 60 and kilobytes < 4e6
    tp = [one for one in found["kinds"][0]["collectives"] if one["group"] == "tp"]
    sent = {one["operation"]: one for one in tp if one["dtype"] == "bfloat16"}
    # Of 6 blocks and 8 micro-batches, forward and backward: weight and bias of qkv, weight of proj.
    assert sent["all-to-all"]["calls"] == 6 * 8 * 2 * 3
    # Seven eighths of a head of the second rank's shard: 3 x 64 rows of 1601 numbers and 64 columns of 1600, in bf16.
    # In the backward pass the first rank receives nothing, since it alone uses its rows.
    received = 7 * 64 // 8 * (3 * 1601 + 1600) * 2
    assert sent["all-to-all"]["bytes"] == 6 * 8 * received
    assert sent["all-to-all"]["bytes"] < 0.02 * sent["all-gather"]["bytes"]


VOCAB = 700


def random_model(draw: random.Random) -> dict[str, Any]:
    """Settings of a model whose heads many degrees do not divide."""
    family, heads = draw.choice(["gpt2", "llama", "t5"]), draw.choice([1, 2, 3, 4, 5, 6, 7, 9, 12, 25])
    options: dict[str, Any] = {"tied": draw.random() < 0.5}
    if family == "llama":
        kv_heads = draw.choice([number for number in range(1, heads + 1) if heads % number == 0])
        biases = draw.choice(["none", "qkv", "all"])
        options |= {"kv_heads": kv_heads, "attention_bias": biases, "qk_norm": draw.random() < 0.3}
        options |= {"value_embeddings": draw.choice([0, 0, 1]), "embedding_norm": draw.random() < 0.3}
    if family == "t5":
        options |= {"activation": draw.choice(["relu", "gated-gelu"]), "decoder_context": draw.choice([32, 48])}
    model = {
        "family": family,
        "layers": draw.choice([2, 4, 6, 8]),
        "heads": heads,
        "hidden": heads * draw.choice([8, 16, 24]),
        "context": 32,
        "dropout": draw.choice([0.0, 0.1]),
        "options": options,
    }
    return {"model": model} | ({"objective": {"name": "span_corruption"}} if family == "t5" else {})


def random_layout(draw: random.Random) -> tuple[dict[str, Any], int]:
    pp, data = draw.choice([1, 1, 2, 3, 4]), draw.choice([1, 2, 3, 4])
    parallel: dict[str, Any] = {
        "tp": draw.choice([1, 2, 2, 4, 4, 8]),
        "pp": pp,
        "zero": draw.choice([0, 1, 2, 3]),
        "sequence_parallel": draw.random() < 0.6,
        "activation_checkpointing": draw.choice(["none", "none", "selective", "full"]),
        "cpu_offload": draw.random() < 0.2,
        "schedule": draw.choice(["1f1b", "gpipe", "interleaved"]) if pp > 1 else "1f1b",
    }
    parallel["virtual_pipeline_stages"] = 2 if parallel["schedule"] == "interleaved" else 1
    micro, number = draw.choice([1, 2, 3]), draw.choice([1, 2, 4, 6, 12])
    batch = {"micro_batch": micro, "global_batch": micro * number * data}
    name = "muon" if draw.random() < 0.15 else "adamw"
    return {"parallel": parallel, "batch": batch, "optimizer": {"name": name}}, data


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(60))
def test_a_random_layout_is_refused_in_a_line_or_has_the_numbers_of_the_plan(seed: int) -> None:
    draw = random.Random(seed)
    layout, data = random_layout(draw)
    kind_of_run = {"precision": draw.choice(["bf16", "fp32", "fp16"]), "device": draw.choice(["cpu", "cuda"])}
    try:
        settings = build(TrainSettings, random_model(draw), layout, kind_of_run)
        ranks = Layout.of(settings, settings.parallel.tp * settings.parallel.pp * data)
        kinds = simulated(settings, VOCAB, ranks, None)
    except UserError as error:
        assert "\n" not in str(error)
        return
    shape = settings.model.shape(VOCAB)
    parts = pieces(settings, shape)
    assert [kind.step.parameters for kind in kinds] == [parameters(part, shape, ranks.tp) for part in parts]
    for kind in kinds:
        assert min(kind.step.memory.values()) >= 0 and kind.step.counts.flops > 0
        assert min(kind.step.counts.bytes.values(), default=1) > 0
    one = simulated(settings, VOCAB, ranks, draw.randrange(ranks.world))[0]
    assert one.step.peak <= 1.001 * kinds[one.stage].step.peak  # a kind is the rank that needs most
    time = step_time(settings, shape, ranks, parts, Hardware(gpus=ranks.world))
    assert all(math.isfinite(getattr(time, name)) and getattr(time, name) >= 0 for name in time.__dataclass_fields__)


def walked(schedule: str, pp: int, stages: int, number: int, rank: int) -> list[Kind]:
    return list(kinds(passes(schedule, pp, stages, number, rank), number))


@pytest.mark.parametrize(
    ("schedule", "pp", "stages"),
    [
        *[("1f1b", pp, 1) for pp in (2, 3, 5, 8)],
        *[("gpipe", pp, 1) for pp in (2, 4)],
        *[("interleaved", pp, stages) for pp in (2, 3, 4) for stages in (2, 3, 5)],
    ],
)
def test_repetitions_are_the_passes_of_the_schedule(schedule: str, pp: int, stages: int) -> None:
    step = pp if schedule == "interleaved" else 1
    compressed = 0
    for number in range(pp, pp * 14 + 1, step):
        for rank in range(pp):
            order = repeated_passes(schedule, pp, stages, number, rank)
            compressed += len(order) > 1
            assert [kind for period, times in order for kind in period * times] == walked(
                schedule, pp, stages, number, rank
            ), (number, rank)
    assert compressed > 4 * pp


def drawn(draw: random.Random, found: set[Kind], range_: int) -> Profile:
    def sizes(low: int) -> dict[str, int]:
        return {name: draw.randint(low, range_) for name in CATEGORIES}

    changes = {kind: PassMemory(sizes(0), sizes(-range_)) for kind in sorted(found)}
    return Profile(3, sizes(0), draw.randint(0, 9), changes, sizes(0))


@pytest.mark.parametrize("seed", range(60))
def test_the_peak_is_that_of_a_walk_through_all_passes(seed: int) -> None:
    draw = random.Random(seed)
    schedule = ("1f1b", "gpipe", "interleaved")[seed % 3]
    pp = draw.randint(2, 5)
    stages = draw.randint(2, 3) if schedule == "interleaved" else 1
    number = pp * draw.randint(7, 12)
    rank = draw.randrange(pp)
    order = walked(schedule, pp, stages, number, rank)
    profile = drawn(draw, set(order), 1 if seed % 2 else 1000)
    assert peak(profile, repeated_passes(schedule, pp, stages, number, rank), number) == peak(
        profile, [(order, 1)], number
    )


def test_the_time_does_not_depend_on_the_number_of_micro_batches() -> None:
    for schedule, pp, stages in (("1f1b", 8, 1), ("gpipe", 8, 1), ("interleaved", 8, 4)):
        number = 8 * 10**12
        started = time.process_time()
        order = repeated_passes(schedule, pp, stages, number, 3)
        assert time.process_time() - started < 5
        made: Counter[bool] = Counter()
        for period, times in order:
            for kind in period:
                made[kind[0][0]] += times
        assert made == {True: number * stages, False: number * stages}
