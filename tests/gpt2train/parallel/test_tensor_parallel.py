"""Processes against the plain model: tensor parallelism, also of heads that it does not divide, and gradient norms."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.model.families import MODELS, Shape
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.parallel.small_model_folder import write_folder

pytestmark = pytest.mark.slow  # the fast suite has one tensor-parallel run: test_train.py

RANKS = Path(__file__).parent / "run_cases.py"
Findings = Callable[[str], list[dict[str, Any]]]
WAYS = [(tp, sequence) for tp in (2, 4) for sequence in (False, True)]
# Family, heads, heads of keys and values, degree.
SPLIT = [
    ("gpt2", 4, 0, 2),
    ("gpt2", 4, 0, 4),
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
# And sequence parallelism; the stage of ZeRO instead of the degree; the kind of numbers; the rate of dropout.
TABLES: dict[str, list[tuple[Any, ...]]] = {
    "equal": [(*model, sequence) for model in SPLIT for sequence in (False, True)],
    "zero": [
        *(("gpt2", 4, 0, *way) for way in ((0, True), (1, False), (2, True), (3, False), (3, True))),
        *(("gpt2", 5, 0, *way) for way in ((0, True), (1, False), (3, True))),
        *(("llama", 6, 3, *way) for way in ((2, True), (3, False))),
        *(("t5", 3, 0, *way) for way in ((0, False), (2, False), (3, True))),
    ],
    "half": [
        *(("gpt2", 4, 0, 2, *way) for way in ((False, "bfloat16"), (True, "bfloat16"), (True, "float16"))),
        *(("gpt2", 5, 0, 2), ("llama", 6, 2, 4), ("t5", 3, 0, 2)),
    ],
    "recomputed": [
        *(("gpt2", heads, 0, sequence) for heads in (4, 5) for sequence in (False, True)),
        *(("llama", 6, 3, False), ("t5", 3, 0, False)),
    ],
}
COMPILED = [
    *(("gpt2", 4, 0, sequence, rate) for sequence in (False, True) for rate in (0.0, 0.5)),
    *(("gpt2", 4, 0, sequence, 0.0, True) for sequence in (False, True)),
    *(("gpt2", 5, 0, True), ("gpt2", 5, 0, False), ("llama", 6, 3, False)),
]


def case(name: str, row: tuple[Any, ...]) -> str:
    return f"tensor_cases.{name} {' '.join(map(repr, row))}"


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    output = tmp_path_factory.mktemp("tensor") / "found.json"
    cases = [case(name, row) for name, rows in TABLES.items() for row in rows]
    cases += [f"tensor_cases.{name} {tp}" for name in ("stock", "loss") for tp in (2, 4)]
    cases += [f"tensor_cases.documents {tp} {sequence}" for tp, sequence in WAYS]
    cases += ["tensor_cases.masks False", "tensor_cases.masks True", "tensor_cases.kept_in_step"]
    run_ranks(RANKS, str(output), *cases, processes=4)
    found = json.loads(output.read_text())
    return lambda case: found[case]


@pytest.mark.parametrize("row", TABLES["equal"], ids=str)
def test_logits_loss_and_gradients_equal_those_of_the_plain_model(row: tuple[Any, ...], findings: Findings) -> None:
    *model, tp, sequence = row
    for found in findings(case("equal", row)):
        assert found["logits"] < 1e-5 and found["loss"] < 1e-6 and found["gradient"] < 1e-5, found
        assert found["same loss"] and found["contiguous"] and found["left partial"] == []
        if model == ["gpt2", 4, 0]:
            # Under sequence parallelism replicated parameters see a part of the tokens: their gradients are summed.
            assert found["partial"] == (1 + 2 * 6 + 2 if sequence else 0)
            # 384 x 32 embeddings, 2 x (96 x 33 + 32 x 32 + 128 x 33 + 32 x 128) cut, the rest whole
            assert found["local"] == (12288 + 2 * (3168 + 1024 + 4224 + 4096)) // tp + 512 + 2 * (32 + 32 + 128) + 64


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


@pytest.mark.parametrize("row", TABLES["zero"], ids=str)
def test_zero_has_the_same_weights_and_gradients(row: tuple[Any, ...], findings: Findings) -> None:
    for found in findings(case("zero", row)):
        assert found["first values"] and found["left partial"] == []
        assert found["gradient"] < 1e-5, found


@pytest.mark.parametrize("row", TABLES["half"], ids=str)
def test_half_precision_is_close_to_the_plain_model(row: tuple[Any, ...], findings: Findings) -> None:
    dtype = row[5] if len(row) > 5 else "bfloat16"
    of_plain, of_exact = {"bfloat16": (5e-3, 2e-2), "float16": (1e-3, 3e-3)}[dtype]
    for found in findings(case("half", row)):
        assert found["of plain"] < of_plain and 0 < found["of exact"] < of_exact, found
        assert found["products"] == [f"torch.{dtype}"] and found["dtypes"] == ["torch.float32"]


@pytest.mark.parametrize(("tp", "sequence"), WAYS)
def test_positions_and_document_masks_are_obeyed(tp: int, sequence: bool, findings: Findings) -> None:
    for found in findings(f"tensor_cases.documents {tp} {sequence}"):
        assert found["loss"] < 1e-6 and found["gradient"] < 1e-5 and found["unmasked"] > 1e-4, found


@pytest.mark.parametrize("sequence", [False, True])
def test_dropout_masks_differ_on_shards_and_agree_on_replicas(sequence: bool, findings: Findings) -> None:
    for found in findings(f"tensor_cases.masks {sequence}"):
        for region, seen in found.items():
            parts = sequence or region == "attention"
            assert seen["alike over tp"] is not parts, (region, seen)
            assert not seen["alike over dp"] and not seen["alike over layers"], (region, seen)
            assert seen["again"] and not seen["later"] and seen["at rest"], (region, seen)


def test_dropout_keeps_a_group_in_agreement(findings: Findings) -> None:
    assert all(found["same"] and found["and after"] for found in findings("tensor_cases.kept_in_step"))


@pytest.mark.parametrize("row", TABLES["recomputed"], ids=str)
def test_recomputation_repeats_the_dropout_masks(row: tuple[Any, ...], findings: Findings) -> None:
    assert all(found["same"] for found in findings(case("recomputed", row)))


@pytest.mark.exhaustive
def test_a_sharded_block_compiles_as_one_graph(tmp_path: Path) -> None:
    run_ranks(RANKS, str(tmp_path / "found.json"), *(case("compiled", row) for row in COMPILED))
    found = json.loads((tmp_path / "found.json").read_text())
    for row in COMPILED:
        for seen in found[case("compiled", row)]:
            assert seen["graphs"] > 0 and seen["gap"] < 1e-5 and (seen["same"] or row[1] != 4), (row, seen)
            # Masks that differ by process come from another state of the generator, which no graph can hold.
            assert len(seen["gaps"]) == (row[3:] == (False, 0.5)), (row, seen)


def test_processes_with_unequal_heads_answer_as_one(tmp_path: Path) -> None:
    options = (("kv_heads", 3), ("inner", 64), ("qk_norm", True), ("value_embeddings", 1))
    llama = MODELS["llama"].complete(Shape(280, 2, 6, 48, 128, "llama", options))
    cases = {}
    for number, shape in enumerate((Shape(280, 2, 5, 40, 128), llama)):
        (tmp_path / str(number)).mkdir()
        folder = write_folder(tmp_path / str(number), shape)
        cases |= {(folder, way): [f"decode_cases.{kind} '{folder}' {way}" for kind in ("equal", "scored")]
                  for way in ("4 1", "2 2")}  # fmt: skip
    run_ranks(RANKS, str(tmp_path / "found.json"), *(one for pair in cases.values() for one in pair), processes=4)
    found = json.loads((tmp_path / "found.json").read_text())
    for pair in cases.values():
        calls, scored = (found[one][0] for one in pair)
        assert calls["sizes"] and calls["lengths"] and calls["difference"] < 2e-5 * calls["scale"], calls
        assert scored["difference"] < 1e-4 and scored["greedy"], scored


LAYOUTS = {
    "replicas": {"zero": 0},
    "shards": {"zero": 3},
    "hybrid": {"zero": 2, "dp_shard_degree": 2},
    "offloaded": {"zero": 3, "cpu_offload": True},
    "tensor and shards": {"tp": 2, "zero": 3},
    "tensor and replicas": {"tp": 2, "sequence_parallel": False},
    "pipeline and shards": {"pp": 2, "zero": 1},
    "pipeline and tensor": {"pp": 2, "tp": 2},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2},
}


def norm_case(name: str) -> str:
    return "norm_cases.layout " + repr(LAYOUTS[name]).replace(" ", "")


@pytest.fixture(scope="module")
def norms(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    output = tmp_path_factory.mktemp("norm") / "found.json"
    cases = [*map(norm_case, LAYOUTS), "norm_cases.partial"]
    run_ranks(RANKS, str(output), *cases, processes=4)
    found = json.loads(output.read_text())
    return lambda name: found[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_norm_is_that_of_the_whole_model_and_a_non_finite_element_is_named(name: str, norms: Findings) -> None:
    """One such element makes all ranks skip the step."""
    everybody = norms(norm_case(name))
    for found in everybody:
        assert abs(found["norm"]) < 1e-6 and abs(found["divisor"]) < 1e-6, found
        assert found["clipped"] < 1e-5 and found["step"] and found["stop"], found
    for kind in ("inf", "nan"):
        assert all(found[kind][0] == 1 and found[f"{kind} untouched"] for found in everybody)
        culprits = {found[kind][1] for found in everybody}
        assert len(culprits) == 1 and culprits.pop().endswith("on rank 2"), everybody
    assert {found["loss"] for found in everybody} == {"the loss on rank 1"}


def test_a_partial_gradient_is_summed(norms: Findings) -> None:
    for found in norms("norm_cases.partial"):
        assert found["same"] and len(set(found["sum"])) == 1 and found["sum"][0] > 1
