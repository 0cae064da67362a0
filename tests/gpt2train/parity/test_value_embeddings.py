"""Value embeddings on layouts of several processes against one process: resuming, merging and decoding."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt2train.config import RunConfig
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.model.families import MODELS, Shape
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.checkpoint.test_layouts import HALF, saved
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import curve, weights
from tests.gpt2train.parallel.small_model_folder import write_folder, write_tokenizer
from tests.gpt2train.parity.test_layouts import HERE, INTERLEAVED, job, run

CASES = HERE.parent / "parallel" / "run_cases.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_checkpoint_resumes_bit_for_bit_and_on_other_layouts(tokens: Path, tmp_path: Path) -> None:
    """A pipeline to itself with dropout; a pipeline to uneven heads, to one process, and merged."""

    def resumed(name: str, before: str, kind: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
        checkpoints = {"init_from": saved(tmp_path / before), "restore": "full"}
        return run(tokens, tmp_path / name, kind, parallel, checkpoints=checkpoints, **changes)

    drop, pipeline = {"model": {"dropout": 0.1}}, INTERLEAVED
    job(
        [
            run(tokens, tmp_path / "drop", "llama, values", pipeline, **drop),
            resumed("again", "drop", "llama, values", pipeline, **drop),
            run(tokens, tmp_path / "split", "llama, values, 6 heads", {"pp": 2}),
            resumed("tp after pp", "split", "llama, values, 6 heads", {"tp": 2}),
            resumed("zero after pp", "split", "llama, values, 6 heads", {"zero": 3}),
        ],
        2,
    )
    job([resumed("one after pp", "split", "llama, values, 6 heads", {})], 1)
    for key in ("loss", "grad_norm"):
        assert curve(tmp_path / "again", key) == curve(tmp_path / "drop", key)[HALF:]
    first, second = weights(tmp_path / "drop"), weights(tmp_path / "again")
    assert "values.1.weight" in first and all((first[name] == second[name]).all() for name in first)
    expected = np.array(curve(tmp_path / "split"))[HALF:]
    for name in ("tp after pp", "zero after pp", "one after pp"):
        assert np.max(np.abs(np.array(curve(tmp_path / name)) / expected - 1)) <= 1e-5, name
    config = run(tokens, tmp_path / "split", "llama, values, 6 heads", {"pp": 2})
    tokenizer = write_tokenizer(tmp_path / "tokenizer", config.vocab)
    merge(newest_checkpoint(tmp_path / "split"), tmp_path / "merged", tokenizer=tokenizer)
    model, trained = read_model(tmp_path / "merged"), weights(tmp_path / "split")
    assert model.shape == config.shape
    for name, parameter in model.named_parameters():
        rows = config.vocab if name.startswith(("values.", "wte.", "lm_head.")) else None
        assert torch.equal(parameter[:rows], trained[name][:rows]), name


@pytest.mark.exhaustive
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_masked_documents_and_logits_do_not_depend_on_the_layout(precision: str, bound: float, tmp_path: Path) -> None:
    layouts: list[dict[str, Any]] = [{"tp": 2}, {"pp": 2}, INTERLEAVED, {"pp": 2, "schedule": "gpipe"}]

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


@pytest.mark.exhaustive
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
