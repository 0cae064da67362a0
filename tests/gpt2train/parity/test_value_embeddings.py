"""Value embeddings and uneven heads on layouts of several processes against one process: resuming and merging."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt2train.config import RunConfig
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.checkpoint.test_layouts import HALF, saved
from tests.gpt2train.jobs import curve, weights
from tests.gpt2train.parallel.small_model_folder import write_tokenizer
from tests.gpt2train.parity.test_layouts import INTERLEAVED, job, run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_checkpoint_resumes_bit_for_bit_and_on_other_layouts(tokens: Path, tmp_path: Path) -> None:
    """A pipeline and uneven heads to themselves, with dropout; a pipeline to uneven heads, one process, and merged."""

    def resumed(name: str, before: str, kind: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
        checkpoints = {"init_from": saved(tmp_path / before), "restore": "full"}
        return run(tokens, tmp_path / name, kind, parallel, checkpoints=checkpoints, **changes)

    drop, pipeline = {"model": {"dropout": 0.1}}, INTERLEAVED
    job(
        [
            run(tokens, tmp_path / "drop", "llama, values", pipeline, **drop),
            resumed("drop again", "drop", "llama, values", pipeline, **drop),
            run(tokens, tmp_path / "uneven", "5 heads", {"tp": 2}, **drop),
            resumed("uneven again", "uneven", "5 heads", {"tp": 2}, **drop),
            run(tokens, tmp_path / "split", "llama, values, 6 heads", {"pp": 2}),
            resumed("tp after pp", "split", "llama, values, 6 heads", {"tp": 2}),
            resumed("zero after pp", "split", "llama, values, 6 heads", {"zero": 3}),
        ],
        2,
    )
    job([resumed("one after pp", "split", "llama, values, 6 heads", {})], 1)
    for name in ("drop", "uneven"):
        for key in ("loss", "grad_norm"):
            assert curve(tmp_path / f"{name} again", key) == curve(tmp_path / name, key)[HALF:]
        first, second = weights(tmp_path / name), weights(tmp_path / f"{name} again")
        assert ("values.1.weight" in first) == (name == "drop")
        assert all((first[key] == second[key]).all() for key in first)
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
