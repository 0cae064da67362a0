"""The fast decode steps against the plain model, for any row lengths and changing rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.compat.torch import can_pack_linear
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.fast_decode_step import bind
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Option, Shape
from tests.gpt2train.models import lively

SHAPE = Shape(vocab=100, layers=2, heads=2, hidden=16, context=12)
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


@pytest.fixture(scope="module", params=["gpt2", *LLAMAS])
def model(request: pytest.FixtureRequest) -> CausalLM:
    return lively(SHAPE if request.param == "gpt2" else llama(request.param))


def test_equal_to_the_plain_model_as_rows_come_and_go(model: CausalLM) -> None:
    @settings(max_examples=8 if model.shape.family == "gpt2" else 4, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        decoder, rows = LocalDecoder(model, 4), []
        token = st.integers(0, SHAPE.vocab - 1)
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
            going = [i for i, row in enumerate(rows) if len(row) < SHAPE.context]
            sources = data.draw(st.lists(st.sampled_from(going), max_size=4)) if going else []
            decoder.select(sources)
            rows = [rows[source] for source in sources]

    check()


def expected(model: CausalLM, rows: list[list[int]]) -> torch.Tensor:
    """Logits after each row's last token: each row alone, no cache."""
    return torch.stack([model(torch.tensor([row]))[0, -1, : SHAPE.vocab] for row in rows])


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
