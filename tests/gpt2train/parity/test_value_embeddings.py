"""Value embeddings on layouts of several processes against one process: training, resuming, merging and decoding.

20 AdamW steps with accumulation and clipping, dropout off; the bound is that of the matrix, the loss of every step
within 1e-5 of the single process in fp32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt2train.config import RunConfig
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.settings import layer
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.checkpoint.test_layouts import HALF, saved
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import curve, make, weights
from tests.gpt2train.parallel.small_model_folder import write_folder, write_tokenizer
from tests.gpt2train.parity.layout_table import Table, check, job
from tests.gpt2train.parity.test_matrix import HERE

CASES = HERE.parent / "parallel" / "run_cases.py"
KINDS: dict[str, dict[str, Any]] = {
    "two": {"heads": 4, "options": {"value_embeddings": 2, "kv_heads": 2, "qk_norm": True, "attention_bias": "all"}},
    "one": {"heads": 4, "options": {"value_embeddings": 1, "tied": True, "activation": "relu2"}},
    "6 heads": {"heads": 6, "hidden": 48, "options": {"value_embeddings": 2, "kv_heads": 3, "inner": 64}},
    "6 heads, 2 of keys": {"heads": 6, "hidden": 48, "options": {"value_embeddings": 1, "kv_heads": 2, "inner": 64}},
}
INTERLEAVED = {"schedule": "interleaved", "virtual_pipeline_stages": 2}
# Kind of model and layout.
TWO: Table = {
    "tp": ("two", {"tp": 2}),
    "tp whole sequences": ("one", {"tp": 2, "sequence_parallel": False, "activation_checkpointing": "selective"}),
    "tp uneven": ("6 heads", {"tp": 2}),
    "pp": ("two", {"pp": 2}),
    "pp gpipe": ("one", {"pp": 2, "schedule": "gpipe", "activation_checkpointing": "full"}),
    "pp interleaved": ("two", {"pp": 2, **INTERLEAVED}),
    "zero 1": ("one", {"zero": 1}),
    "zero 3": ("two", {"zero": 3, "activation_checkpointing": "selective"}),
    "zero 3 offload": ("two", {"zero": 3, "cpu_offload": True, "activation_checkpointing": "full"}),
}
MORE_OF_TWO: Table = {
    "tp uneven, whole sequences": ("6 heads", {"tp": 2, "sequence_parallel": False}),
    "zero 0": ("two", {"zero": 0}),
    "zero 2": ("one", {"zero": 2}),
}
FOUR: Table = {
    "tp 4, 2 heads of keys": ("two", {"tp": 4}),
    "tp 4 uneven": ("6 heads", {"tp": 4}),
    "tp 4 uneven, 2 heads of keys": ("6 heads, 2 of keys", {"tp": 4, "sequence_parallel": False}),
    "tp x pp interleaved": ("two", {"tp": 2, "pp": 2, **INTERLEAVED}),
    "tp x pp uneven": ("6 heads", {"tp": 2, "pp": 2}),
    "tp x dp, zero 3, uneven": ("6 heads", {"tp": 2, "zero": 3}),
    "pp 4": ("two", {"pp": 4}),
    "pp x dp, zero 3": ("one", {"pp": 2, "zero": 3}),
    "hybrid": ("one", {"zero": 3, "dp_shard_degree": 2}),
}


def run(tokens: Path, output: Path, kind: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
    """A small run of a kind; every layout adds micro-batches up."""
    model = {"layers": 4, "hidden": 32, "family": "llama"} | KINDS[kind]
    base = {"model": model, "batch": {"micro_batch": 1, "global_batch": 8}, "parallel": parallel}
    return make(tokens, output, **layer(base, changes))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_processes_train_like_one(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, TWO, 2)


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
def test_two_processes_train_like_one_on_further_layouts(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, MORE_OF_TWO, 2)


@pytest.mark.exhaustive
@pytest.mark.timeout(2500)
def test_four_processes_train_like_one(tokens: Path, tmp_path: Path) -> None:
    check(run, tokens, tmp_path, FOUR, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_checkpoint_resumes_bit_for_bit_and_on_other_layouts(tokens: Path, tmp_path: Path) -> None:
    """A pipeline to itself with dropout; a pipeline to uneven heads, to one process, and merged."""

    def resumed(name: str, before: str, kind: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
        checkpoints = {"init_from": saved(tmp_path / before), "restore": "full"}
        return run(tokens, tmp_path / name, kind, parallel, checkpoints=checkpoints, **changes)

    drop, pipeline = {"model": {"dropout": 0.1}}, {"pp": 2, **INTERLEAVED}
    job(
        [
            run(tokens, tmp_path / "drop", "two", pipeline, **drop),
            resumed("again", "drop", "two", pipeline, **drop),
            run(tokens, tmp_path / "split", "6 heads", {"pp": 2}),
            resumed("tp after pp", "split", "6 heads", {"tp": 2}),
            resumed("zero after pp", "split", "6 heads", {"zero": 3}),
        ],
        2,
    )
    job([resumed("one after pp", "split", "6 heads", {})], 1)
    for key in ("loss", "grad_norm"):
        assert curve(tmp_path / "again", key) == curve(tmp_path / "drop", key)[HALF:]
    first, second = weights(tmp_path / "drop"), weights(tmp_path / "again")
    assert "values.1.weight" in first and all((first[name] == second[name]).all() for name in first)
    expected = np.array(curve(tmp_path / "split"))[HALF:]
    for name in ("tp after pp", "zero after pp", "one after pp"):
        assert np.max(np.abs(np.array(curve(tmp_path / name)) / expected - 1)) <= 1e-5, name
    config = run(tokens, tmp_path / "split", "6 heads", {"pp": 2})
    tokenizer = write_tokenizer(tmp_path / "tokenizer", config.vocab)
    merge(newest_checkpoint(tmp_path / "split"), tmp_path / "merged", tokenizer=tokenizer)
    model, trained = read_model(tmp_path / "merged"), weights(tmp_path / "split")
    assert model.shape == config.shape
    for name, parameter in model.named_parameters():
        rows = config.vocab if name.startswith(("values.", "wte.", "lm_head.")) else None
        assert torch.equal(parameter[:rows], trained[name][:rows]), name


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_masked_documents_and_logits_do_not_depend_on_the_layout(precision: str, bound: float, tmp_path: Path) -> None:
    layouts: list[dict[str, Any]] = [{"tp": 2}, {"pp": 2}, {"pp": 2, **INTERLEAVED}, {"pp": 2, "schedule": "gpipe"}]

    def results(processes: int, layouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        cases = [f"value_cases.computed {str(one).replace(' ', '')} '{precision}'" for one in layouts]
        run_ranks(CASES, str(tmp_path / "found.json"), *cases, processes=processes)
        found = json.loads((tmp_path / "found.json").read_text())
        return [found[case][-1] for case in cases]

    one = results(1, [{}])[0]
    for layout, found in zip(layouts, results(2, layouts), strict=True):
        for name in ("loss", "norm", "valid"):
            assert found[name] == pytest.approx(one[name], rel=bound), (layout, name)
        difference = np.abs(np.array(found["logits"]) - np.array(one["logits"])).max()
        assert difference <= bound * np.abs(np.array(one["logits"])).max(), layout


@pytest.mark.slow
def test_several_processes_answer_as_one(tmp_path: Path) -> None:
    shapes = {
        "even": Shape(280, 4, 4, 32, 128, "llama", (("value_embeddings", 2), ("kv_heads", 2))),
        "uneven": Shape(280, 4, 6, 48, 128, "llama", (("value_embeddings", 1), ("kv_heads", 3), ("inner", 64))),
    }
    cases: dict[tuple[str, str, str], str] = {}
    for name, shape in shapes.items():
        (tmp_path / name).mkdir()
        folder = write_folder(tmp_path / name, MODELS["llama"].complete(shape))
        for layout in ("4 1", "2 2", "1 4"):
            kinds = ("equal", "scored", "lambada") if layout == "2 2" else ("equal", "scored")
            cases |= {(name, layout, kind): f"decode_cases.{kind} '{folder}' {layout}" for kind in kinds}
    run_ranks(CASES, str(tmp_path / "found.json"), *cases.values(), processes=4)
    found = json.loads((tmp_path / "found.json").read_text())
    for (name, layout, kind), case in cases.items():
        seen = found[case][0]
        if kind == "equal":
            assert seen["sizes"] and seen["lengths"] and seen["difference"] < 2e-5 * seen["scale"], (name, layout, seen)
        else:
            assert seen["difference"] < 1e-4 and seen["greedy" if kind == "scored" else "same"], (name, layout, seen)
