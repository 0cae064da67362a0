"""Heads that the tensor-parallel degree does not divide: the numbers of the plain model on 2 and 4 processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gpt2train.errors import UserError
from gpt2train.model.causal_lm import Shape, build_model
from gpt2train.model.families import MODELS
from gpt2train.parallel.head_split import HeadSplit
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.uneven_heads import check_attention, used_rows
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.parallel.small_model_folder import write_folder
from tests.gpt2train.parallel.uneven_cases import shape_of

RANKS = Path(__file__).parent / "run_cases.py"
Findings = Callable[[str], list[dict[str, Any]]]
# Family, heads, heads of keys and values, degree.
MODELS_SPLIT = [
    ("gpt2", 3, 0, 2),
    ("gpt2", 5, 0, 2),
    ("gpt2", 5, 0, 4),
    ("llama", 6, 3, 2),  # unequal numbers of queries for a key
    ("llama", 6, 3, 4),
    ("llama", 6, 2, 4),
    ("llama", 6, 1, 4),
    ("llama", 8, 2, 4),  # the degree divides the heads of queries alone
    ("t5", 3, 0, 2),
    ("t5", 5, 0, 4),
]
EQUAL = [(*model, sequence) for model in MODELS_SPLIT for sequence in (False, True)]
ZERO = [
    ("gpt2", 5, 0, 0, True),
    ("gpt2", 5, 0, 1, False),
    ("gpt2", 5, 0, 3, True),
    ("llama", 6, 3, 2, True),
    ("llama", 6, 3, 3, False),
    ("t5", 3, 0, 0, False),
    ("t5", 3, 0, 2, False),
    ("t5", 3, 0, 3, True),
]
HALF = [("gpt2", 5, 0, 2), ("llama", 6, 2, 4), ("t5", 3, 0, 2)]
RECOMPUTED = [("gpt2", 5, 0, False), ("gpt2", 5, 0, True), ("llama", 6, 3, False), ("t5", 3, 0, False)]
COMPILED = [("gpt2", 5, 0, True), ("gpt2", 5, 0, False), ("llama", 6, 3, False)]
TABLES = {"equal": EQUAL, "zero": ZERO, "half": HALF, "recomputed": RECOMPUTED}


def case(name: str, arguments: tuple[Any, ...]) -> str:
    return f"uneven_cases.{name} {' '.join(map(repr, arguments))}"


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Results of each case on four processes."""
    output = tmp_path_factory.mktemp("uneven") / "found.json"
    cases = [case(name, row) for name, rows in TABLES.items() for row in rows]
    run_ranks(RANKS, str(output), *cases, processes=4)
    found = json.loads(output.read_text())
    return lambda name: found[name]


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


@pytest.mark.slow
@pytest.mark.parametrize("row", EQUAL, ids=str)
def test_loss_and_gradients_equal_those_of_the_plain_model(row: tuple[Any, ...], findings: Findings) -> None:
    for found in findings(case("equal", row)):
        assert found["loss"] < 1e-6 and found["gradient"] < 1e-5, found
        assert found["same loss"] and found["contiguous"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ZERO, ids=str)
def test_zero_has_the_same_weights_and_gradients(row: tuple[Any, ...], findings: Findings) -> None:
    for found in findings(case("zero", row)):
        assert found["first values"] and found["left partial"] == []
        assert found["gradient"] < 1e-5, found


@pytest.mark.slow
@pytest.mark.parametrize("row", HALF, ids=str)
def test_bf16_is_close_to_the_plain_model(row: tuple[Any, ...], findings: Findings) -> None:
    for found in findings(case("half", row)):
        assert found["of plain"] < 5e-3 and 0 < found["of exact"] < 2e-2, found
        assert found["dtypes"] == ["torch.float32"]


@pytest.mark.slow
@pytest.mark.parametrize("row", RECOMPUTED, ids=str)
def test_recomputation_repeats_the_dropout_masks(row: tuple[Any, ...], findings: Findings) -> None:
    assert all(found["same"] for found in findings(case("recomputed", row)))


@pytest.mark.exhaustive
def test_a_block_compiles_as_one_graph(tmp_path: Path) -> None:
    run_ranks(RANKS, str(tmp_path / "found.json"), *(case("compiled", row) for row in COMPILED))
    for name, every in json.loads((tmp_path / "found.json").read_text()).items():
        for found in every:
            assert found["gap"] < 1e-5 and found["graphs"] > 0 and found["gaps"] == [], (name, found)


@pytest.mark.slow
def test_processes_with_unequal_heads_answer_as_one(tmp_path: Path) -> None:
    shapes = {
        "gpt2": Shape(280, 2, 5, 40, 128),
        "llama": MODELS["llama"].complete(
            Shape(280, 2, 6, 48, 128, "llama", (("kv_heads", 3), ("inner", 64), ("qk_norm", True)))
        ),
    }
    folders = {}
    for name, shape in shapes.items():
        (tmp_path / name).mkdir()
        folders[name] = write_folder(tmp_path / name, shape)
    cases = [f"decode_cases.{kind} '{folder}' 4 1" for folder in folders.values() for kind in ("equal", "scored")]
    run_ranks(RANKS, str(tmp_path / "found.json"), *cases, processes=4)
    found = json.loads((tmp_path / "found.json").read_text())
    for folder in folders.values():
        calls, scored = (found[f"decode_cases.{kind} '{folder}' 4 1"][0] for kind in ("equal", "scored"))
        assert calls["sizes"] and calls["lengths"] and calls["difference"] < 2e-5 * calls["scale"], calls
        assert scored["difference"] < 1e-4 and scored["greedy"], scored


@pytest.mark.exhaustive
def test_an_encoder_decoder_with_unequal_heads_writes_what_one_process_writes(tmp_path: Path) -> None:
    options = (("encoder_layers", 1), ("decoder_context", 64), ("start_id", 0))
    shape = MODELS["t5"].complete(Shape(280, 3, 3, 24, 64, "t5", options))
    folder = write_folder(tmp_path, shape)
    name = f"decode_cases.encoder_decoder '{folder}' 2 1"
    run_ranks(RANKS, str(tmp_path / "found.json"), name)
    found = json.loads((tmp_path / "found.json").read_text())[name][0]
    assert found["difference"] < 1e-5 and found["greedy"] and found["beams"] and found["lengths"], found
    assert len({tuple(tokens) for tokens in found["tokens"]}) > 1
