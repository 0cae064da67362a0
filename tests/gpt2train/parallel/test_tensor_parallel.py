"""Tensor parallelism on 2 and 4 processes: the numbers of the plain model, and the traps on the way to them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.parallel.tensor_parallel import _parallel_class
from tests.gpt2train.forked_ranks import run_ranks

pytestmark = pytest.mark.slow  # the fast suite has one tensor-parallel run: test_train.py

RANKS = Path(__file__).parent / "run_cases.py"
Findings = Callable[[str], list[dict[str, Any]]]
WAYS = [(tp, sequence) for tp in (2, 4) for sequence in (False, True)]
WHOLE = ("equal", "stages", "documents")
HALF = {(False, "bfloat16"): (5e-3, 2e-2), (True, "bfloat16"): (5e-3, 2e-2), (True, "float16"): (1e-3, 3e-3)}
ZERO = [(0, True), (1, False), (2, True), (3, False), (3, True)]
CASES = [
    *(f"tensor_cases.{name} {tp} {sequence}" for name in WHOLE for tp, sequence in WAYS),
    *(f"tensor_cases.{name} {tp}" for name in ("heads", "stock", "loss", "cache") for tp in (2, 4)),
    "tensor_cases.steps 2 True",
    *(f"uneven_cases.zero 'gpt2' 4 0 {stage} {sequence}" for stage, sequence in ZERO),
    *(f"tensor_cases.autocast 2 {sequence} {dtype!r}" for sequence, dtype in HALF),
    "tensor_cases.alone",
    *(f"dropout_cases.masks {sequence}" for sequence in (False, True)),
    *(f"uneven_cases.recomputed 'gpt2' 4 0 {sequence}" for sequence in (False, True)),
    "dropout_cases.kept_in_step",
]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Results of each case on four processes."""
    output = tmp_path_factory.mktemp("tensor") / "found.json"
    run_ranks(RANKS, str(output), *CASES, processes=4)
    found = json.loads(output.read_text())
    return lambda case: found[case]


@pytest.mark.parametrize(("tp", "sequence"), WAYS)
def test_logits_loss_and_gradients_equal_those_of_the_plain_model(tp: int, sequence: bool, findings: Findings) -> None:
    for found in findings(f"tensor_cases.equal {tp} {sequence}"):
        assert found["logits"] < 1e-5 and found["loss"] < 1e-6 and found["gradient"] < 1e-5, found
        assert found["same loss"]
        # Under sequence parallelism replicated parameters see a part of the tokens: their gradients must be summed.
        assert len(found["partial"]) == (1 + 2 * 6 + 2 if sequence else 0) and found["left partial"] == []
        # 384 x 32 embeddings, 2 x (96 x 33 + 32 x 32 + 128 x 33 + 32 x 128) cut, the rest whole
        assert found["local"] == (12288 + 2 * (3168 + 1024 + 4224 + 4096)) // tp + 512 + 2 * (32 + 32 + 128) + 64


def test_twenty_steps_equal_those_of_the_plain_model(findings: Findings) -> None:
    for found in findings("tensor_cases.steps 2 True"):
        assert found["loss"] < 1e-5 and found["last"] < 4.5, found
        assert found["whole stay equal"]


@pytest.mark.parametrize("tp", [2, 4])
def test_a_shard_of_the_fused_projection_has_whole_heads(tp: int, findings: Findings) -> None:
    assert all(found["whole"] for found in findings(f"tensor_cases.heads {tp}"))


@pytest.mark.parametrize("tp", [2, 4])
def test_the_stock_plan_of_torch_has_the_same_gradients(tp: int, findings: Findings) -> None:
    for found in findings(f"tensor_cases.stock {tp}"):
        assert found["gradient"] < 1e-5, found


@pytest.mark.parametrize("tp", [2, 4])
def test_the_loss_over_a_sharded_vocabulary_equals_the_plain_one(tp: int, findings: Findings) -> None:
    for found in findings(f"tensor_cases.loss {tp}"):
        for kind in ("", ", capped"):
            close = found[f"loss{kind}"] < 1e-6 and found[f"hidden{kind}"] < 1e-5 and found[f"weight{kind}"] < 1e-5
            assert close and found[f"without gradient{kind}"], found


@pytest.mark.parametrize(("stage", "sequence"), ZERO)
def test_zero_with_tensor_parallelism_has_the_same_weights_and_gradients(
    stage: int, sequence: bool, findings: Findings
) -> None:
    for found in findings(f"uneven_cases.zero 'gpt2' 4 0 {stage} {sequence}"):
        assert found["first values"] and found["left partial"] == []
        assert found["gradient"] < 1e-5, found


@pytest.mark.parametrize(("sequence", "dtype"), HALF)
def test_half_precision_is_close_to_the_plain_model(sequence: bool, dtype: str, findings: Findings) -> None:
    of_plain, of_exact = HALF[sequence, dtype]
    for found in findings(f"tensor_cases.autocast 2 {sequence} {dtype!r}"):
        assert found["of plain"] < of_plain and 0 < found["of exact"] < of_exact, found
        assert found["products"] == [f"torch.{dtype}"] * 2 and found["dtypes"] == ["torch.float32"]


@pytest.mark.parametrize("tp", [2, 4])
def test_the_kv_cache_holds_the_heads_of_its_rank(tp: int, findings: Findings) -> None:
    for found in findings(f"tensor_cases.cache {tp}"):
        assert found["logits"] < 1e-5 and found["heads"] == 4 // tp, found


@pytest.mark.parametrize(("tp", "sequence"), WAYS)
def test_pipeline_stages_can_be_tensor_parallel(tp: int, sequence: bool, findings: Findings) -> None:
    for found in findings(f"tensor_cases.stages {tp} {sequence}"):
        assert found["loss"] < 1e-6 and found["length"] == (16 // tp if sequence else 16), found


@pytest.mark.parametrize(("tp", "sequence"), WAYS)
def test_positions_and_document_masks_are_obeyed(tp: int, sequence: bool, findings: Findings) -> None:
    for found in findings(f"tensor_cases.documents {tp} {sequence}"):
        assert found["loss"] < 1e-6 and found["gradient"] < 1e-5 and found["unmasked"] > 1e-4, found


def test_a_group_of_one_changes_nothing(findings: Findings) -> None:
    assert all(found["unchanged"] for found in findings("tensor_cases.alone"))


@pytest.mark.parametrize("sequence", [False, True])
def test_dropout_masks_differ_on_shards_and_agree_on_replicas(sequence: bool, findings: Findings) -> None:
    for found in findings(f"dropout_cases.masks {sequence}"):
        for region, seen in found.items():
            parts = sequence or region == "attention"
            assert seen["alike over tp"] is not parts, (region, seen)
            assert not seen["alike over dp"] and not seen["alike over layers"], (region, seen)
            assert seen["again"] and not seen["later"] and seen["at rest"], (region, seen)


@pytest.mark.parametrize("sequence", [False, True])
def test_recomputation_repeats_the_dropout_masks(sequence: bool, findings: Findings) -> None:
    assert all(found["same"] for found in findings(f"uneven_cases.recomputed 'gpt2' 4 0 {sequence}"))


def test_dropout_keeps_a_group_in_agreement(findings: Findings) -> None:
    assert all(found["same"] and found["and after"] for found in findings("dropout_cases.kept_in_step"))


@pytest.mark.exhaustive
def test_a_sharded_block_compiles_as_one_graph(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    ways = [(0.0, False, False), (0.0, True, False), (0.5, True, False), (0.5, False, False)]
    ways += [(0.0, False, True), (0.0, True, True)]
    cases = [f"uneven_cases.compiled 'gpt2' 4 0 {sequence} {rate} {half}" for rate, sequence, half in ways]
    run_ranks(RANKS, str(output), *cases)
    found = json.loads(output.read_text())
    for case, way in zip(cases, ways, strict=True):
        for seen in found[case]:
            assert seen["same"] and seen["graphs"] > 0, seen
            # Masks that differ by process come from another state of the generator, which no graph can hold.
            assert len(seen["gaps"]) == (way == (0.5, False, False)), seen


def test_a_layer_norm_inside_attention_is_refused() -> None:
    model = GPT2(Shape(vocab=300, layers=1, heads=4, hidden=32, context=16))
    norm = nn.LayerNorm(8)
    model.blocks["0"].attn.q_norm = norm
    with pytest.raises(UserError, match=r"blocks.0.attn.q_norm of the model family gpt2 is a LayerNorm of queries or"):
        _parallel_class(model, "blocks.0.attn.q_norm", norm, 2)
