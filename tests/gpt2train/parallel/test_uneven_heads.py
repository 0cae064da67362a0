"""Heads that the tensor-parallel degree does not divide: who has which, and what is refused."""

import pytest
from torch import nn

from gpt2train.errors import UserError
from gpt2train.model.causal_lm import Shape, build_model
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.tensor_parallel import _parallel_class
from gpt2train.parallel.uneven_heads import check_attention, used_rows
from tests.gpt2train.parallel.tensor_cases import shape_of


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 12, 25, 47])
def test_heads_are_split_into_ranges_that_differ_by_one(heads: int) -> None:
    for tp in range(1, heads + 1):
        split = HeadSplit(heads, heads, tp)
        ranges = [split.queries(rank) for rank in range(tp)]
        assert [head for own in ranges for head in own] == list(range(heads))
        assert max(map(len, ranges)) - min(map(len, ranges)) == (heads % tp > 0)
        assert split.fullest == 0 and split.even == (heads % tp == 0)


def test_a_rank_has_the_keys_of_its_queries() -> None:
    for heads, kv_heads in ((6, 3), (6, 2), (6, 1), (8, 2), (12, 4), (15, 5)):
        for tp in range(1, heads + 1):
            split, group = HeadSplit(heads, kv_heads, tp), heads // kv_heads
            for rank in range(tp):
                expected = [query // group for query in split.queries(rank)]
                keys, repeats = list(split.keys(rank)), split.repeats(rank)
                if not repeats:  # attention repeats each key alike
                    repeats = (len(expected) // len(keys),) * len(keys)
                assert [key for key, n in zip(keys, repeats, strict=True) for _ in range(n)] == expected


def test_the_example_of_25_heads_moves_a_seventh_of_the_rows() -> None:
    split = HeadSplit(25, 25, 8)
    assert [len(split.queries(rank)) for rank in range(8)] == [4, 3, 3, 3, 3, 3, 3, 3]
    shape = Shape(300, 1, 25, 200, 16)
    used = used_rows(build_model(shape), "blocks.0.attn.qkv.weight", shape, 8)
    assert used is not None
    stored = [range(75 * rank, 75 * (rank + 1)) for rank in range(8)]
    moved = sum(len(set(rows) - set(own)) for rows, own in zip(used, stored, strict=True))
    assert moved / 600 == pytest.approx(0.14)


def test_a_degree_that_divides_the_heads_moves_nothing() -> None:
    for shape, tp in ((shape_of("gpt2", 4), 4), (shape_of("llama", 8, 4), 4), (shape_of("t5", 4), 2)):
        model = build_model(shape)
        assert all(used_rows(model, name, shape, tp) is None for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("family", "heads", "kv_heads", "tp", "said"),
    [
        ("gpt2", 3, 0, 4, "--tp 4 is more than the model's 3 heads; for this model it can be 1, 2$"),
        ("gpt2", 5, 0, 3, "--tp 3 does not divide the size 40 of blocks.0.attn.proj.weight; .* 1, 2, 4$"),
        ("llama", 3, 1, 4, "--tp 4 is more than the model's 3 heads; for this model it can be 1, 2$"),
    ],
)
def test_other_degrees_are_refused(family: str, heads: int, kv_heads: int, tp: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Layout.of_model(shape_of(family, heads, kv_heads), tp, 1, tp)


def test_queries_and_keys_in_one_layer_are_refused() -> None:
    shape = shape_of("llama", 6, 3)
    model = build_model(shape)
    model.blocks["0"].attn.q = nn.Linear(shape.hidden, (6 + 2 * 3) * shape.head_dim)
    with pytest.raises(UserError, match=r"tp 4 .* blocks.0.attn.q of the .* llama has queries and keys in one layer"):
        used_rows(model, "blocks.0.attn.q.weight", shape, 4)


def test_an_attention_of_another_class_is_refused() -> None:
    shape = shape_of("gpt2", 5)
    check_attention(build_model(shape), shape, 2)
    check_attention(nn.Linear(2, 2), shape, 5)
    with pytest.raises(UserError, match=r"tp 2 does not divide the 5 heads, .* family gpt2 is no SelfAttention"):
        check_attention(nn.Linear(2, 2), shape, 2)


def test_a_layer_norm_inside_attention_is_refused() -> None:
    model = GPT2(Shape(vocab=300, layers=1, heads=4, hidden=32, context=16))
    norm = nn.LayerNorm(8)
    model.blocks["0"].attn.q_norm = norm
    with pytest.raises(UserError, match=r"blocks.0.attn.q_norm of the model family gpt2 is a LayerNorm of queries or"):
        _parallel_class(model, "blocks.0.attn.q_norm", norm)
