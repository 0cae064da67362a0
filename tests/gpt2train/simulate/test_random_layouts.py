"""Simulated steps of random layouts: no failure but a refusal of one line, and numbers that agree with the plan's."""

import math
import random
from typing import Any

import pytest

from gpt2train.config import TrainSettings
from gpt2train.errors import UserError
from gpt2train.parallel.layout import Layout
from gpt2train.plan.duration import step_time
from gpt2train.plan.hardware import Hardware
from gpt2train.plan.parameters import parameters, pieces
from gpt2train.plan.simulation import simulated
from gpt2train.settings import build

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
    """Settings of a layout, and its number of data-parallel processes."""
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
