"""Decoders: fast steps against the plain model as rows come and go, and several processes against one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.compat.torch import can_pack_linear
from gpt2train.convert.huggingface import read_model
from gpt2train.errors import UserError
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.fast_decode_step import bind
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Option, Shape
from gpt2train.parallel.layout import Layout
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.models import lively
from tests.gpt2train.parallel.small_model_folder import SHAPE, write_folder

SMALL = Shape(vocab=100, layers=2, heads=2, hidden=16, context=12)
ODD = (("head_dim", 12), ("inner", 40), ("activation", "relu"), ("bias", False), ("tied", False))
YARN = '{"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 6}'
LLAMAS: dict[str, dict[str, Option]] = {
    "llama": {},
    "qwen3": {"kv_heads": 2, "qk_norm": True, "attention_bias": "all", "rope_scaling": YARN},
    "relu2": {"kv_heads": 1, "head_dim": 6, "activation": "relu2", "tied": True, "attention_bias": "qkv"},
    "capped": {"kv_heads": 2, "mlp_bias": True, "logit_softcap": 2.0, "embedding_norm": True},
    "values": {"kv_heads": 2, "value_embeddings": 1},
}


def llama(kind: str) -> Shape:
    return complete_shape(Shape(100, 2, 4, 16, context=12, family="llama", options=tuple(LLAMAS[kind].items())))


@pytest.fixture(scope="module", params=["gpt2", "gpt2, odd", *LLAMAS])
def model(request: pytest.FixtureRequest) -> CausalLM:
    gpt2 = {"gpt2": SMALL, "gpt2, odd": replace(SMALL, options=ODD)}
    return lively(gpt2.get(request.param) or llama(request.param))


def test_equal_to_the_plain_model_as_rows_come_and_go(model: CausalLM) -> None:
    @settings(max_examples=8 if model.shape.family == "gpt2" else 4, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        decoder, rows = LocalDecoder(model, 4), []
        token = st.integers(0, SMALL.vocab - 1)
        for _ in range(6):
            room = 4 - len(rows)
            new = data.draw(st.lists(st.lists(token, min_size=1, max_size=6), min_size=not rows, max_size=room))
            if new:
                assert torch.allclose(decoder.add(new), expected(model, new), atol=1e-4)
                rows += new
            step = data.draw(st.lists(token, min_size=len(rows), max_size=len(rows)))
            rows = [[*row, one] for row, one in zip(rows, step, strict=True)]
            assert torch.allclose(decoder.step(step), expected(model, rows), atol=1e-4)
            assert list(decoder.lengths) == [len(row) for row in rows]
            going = [i for i, row in enumerate(rows) if len(row) < SMALL.context]
            sources = data.draw(st.lists(st.sampled_from(going), max_size=4)) if going else []
            decoder.select(sources)
            rows = [rows[source] for source in sources]

    check()


def expected(model: CausalLM, rows: list[list[int]]) -> torch.Tensor:
    """Logits after each row's last token: each row alone, no cache."""
    return torch.stack([model(torch.tensor([row]))[0, -1, : SMALL.vocab] for row in rows])


@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_matrix_product_equals_the_plain_one(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 48, generator=generator), torch.randn(70, 48, generator=generator)
    added = torch.randn(70, generator=generator) if bias else None
    plain = torch.nn.functional.linear(x, weight, added)
    if not can_pack_linear(weight):
        pytest.skip("this torch has no packed product")
    assert torch.allclose(bind(weight, added, packed=True)(x), plain, atol=1e-4)
    assert torch.equal(bind(weight, added, packed=False)(x), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_equals_the_plain_model(model: CausalLM, dtype: torch.dtype) -> None:
    half = build_model(model.shape).to(dtype).requires_grad_(False).eval()
    half.load_state_dict(model.state_dict())
    decoder = LocalDecoder(half, 3)
    rows = [[5, 6, 7], [8]]
    decoder.add(rows)
    found = decoder.step([1, 2])
    assert found.dtype == torch.float32
    exact = expected(model, [[5, 6, 7, 1], [8, 2]])
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


RANKS = Path(__file__).parents[1] / "parallel" / "run_cases.py"
Findings = Callable[[str], list[dict[str, Any]]]
LAYOUTS = [(4, 1), (2, 2), (1, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("decode"))


@pytest.fixture(scope="module")
def findings_of_two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    names = [f"{name} '{folder}' 2 1" for name in ("equal", "scored", "lambada", "over")]
    return run(folder, tmp_path_factory, 2, names)


@pytest.fixture(scope="module")
def findings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    names = [f"{name} '{folder}' {tp} {pp}" for name in ("equal", "scored", "lambada") for tp, pp in LAYOUTS]
    return run(folder, tmp_path_factory, 4, names)


def run(folder: Path, temporary: pytest.TempPathFactory, processes: int, cases: list[str]) -> Findings:
    output = temporary.mktemp("found") / "found.json"
    names = [f"decode_cases.{case}" for case in cases]
    run_ranks(RANKS, str(output), *names, processes=processes)
    found = json.loads(output.read_text())
    return lambda case: found[f"decode_cases.{case.split()[0]} '{folder}' {case.split(maxsplit=1)[1]}"]


def check_answers(findings: Findings, layout: str) -> None:
    """Hold logits of every decoder call, scores without logits and LAMBADA against those of one process."""
    calls, scored, lambada = (findings(f"{name} {layout}")[0] for name in ("equal", "scored", "lambada"))
    assert calls["sizes"] and calls["lengths"] and calls["dtype"] == "torch.float32", calls
    assert calls["difference"] < 2e-5 * calls["scale"], calls
    assert scored["difference"] < 1e-4 and scored["greedy"] and 0 < scored["likeliest"] < scored["of"], scored
    assert lambada["same"] and lambada["difference"] < 1e-4 and lambada["passages"] > lambada["correct"] > 0, lambada


def test_two_tensor_parallel_processes_answer_as_one(findings_of_two: Findings) -> None:
    check_answers(findings_of_two, "2 1")
    assert "a newer one of the same model" in findings_of_two("over 2 1")[0]["said"]


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_four_processes_answer_as_one(tp: int, pp: int, findings: Findings) -> None:
    check_answers(findings, f"{tp} {pp}")


@pytest.mark.slow
def test_each_process_holds_only_its_shard(folder: Path, findings: Findings) -> None:
    whole = sum(p.numel() for p in read_model(folder).parameters())
    tied = SHAPE.padded_vocab * SHAPE.hidden  # the first and the last stage have one each
    for tp, pp in LAYOUTS:
        parts = [found["parameters"] for found in findings(f"equal {tp} {pp}")]
        norms = (2 * 2 + 1 + 4) * SHAPE.hidden * SHAPE.layers  # norms and the biases of proj and down: whole on all
        most = (whole + (tied if pp > 1 else 0)) / 4 + norms + 2 * SHAPE.hidden + SHAPE.context * SHAPE.hidden
        assert sum(parts) >= whole and max(parts) <= most + (tied if tp == 1 else 0), (tp, pp, parts, whole)


@pytest.mark.slow
def test_an_idle_model_sleeps_longer_than_its_timeout(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        found = run(folder, tmp_path_factory, 4, [f"idle '{folder}' 2 2 2"])("idle 2 2 2")
    except AssertionError:  # a rank that was stopped for 2 s is given up
        found = run(folder, tmp_path_factory, 4, [f"idle '{folder}' 2 2 30"])("idle 2 2 30")
    assert found[0]["answers"] == [1, SHAPE.vocab]
    assert all(one["seconds"] < 1 for one in found), found  # of six


@pytest.mark.parametrize(
    ("tp", "pp", "world", "said"),
    [
        (2, 2, 3, "--tp 2 x --pp 2 = 4 processes, but there are 3"),
        (3, 1, 3, "--tp 3 does not divide the size 32 of"),
        (8, 1, 8, "--tp 8 is more than the model's 4 heads; for this model it can be 1, 2, 4"),
        (1, 5, 5, "--pp 5 stages, but the model has 4 layers"),
        (0, 1, 1, "both must be at least 1"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_with_the_calculation(tp: int, pp: int, world: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Layout.of_model(SHAPE, tp, pp, world)
    with pytest.raises(UserError, match="--tp 256 does not divide 128"):
        Layout.of_model(Shape(300, 2, 256, 512, 32), 256, 1, 256)
