"""lm-evaluation-harness on the merged folder, as its users run it: the same counts on the same file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.lambada import evaluate_lambada
from gpt2train.evaluate.passages import read_passages
from tests.gpt2train.evaluate.overfitted_model import learn_last_words, small_bpe, write

# The harness's own lambada_openai, but that the passages come from a file of this machine.
TASK = """
task: lambada_local
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
Harness = Callable[[Path, Path], dict[str, Any]]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The harness as a program: its results on a model folder and a file of passages."""
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is in the extra peers")

    def run(model: Path, data: Path) -> dict[str, Any]:
        (tmp_path / "task").mkdir()
        (tmp_path / "task/lambada_local.yaml").write_text(TASK.format(data=data))
        command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model}"]
        command += ["--tasks", "lambada_local", "--include_path", str(tmp_path / "task"), "--device", "cpu"]
        command += ["--batch_size", "16", "--output_path", str(tmp_path / "out")]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, Any] = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())
        return found["results"]["lambada_local"]

    return run


def check_equal(harness: Harness, passages: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Hold our scores against the harness's; ours."""
    data = folder / "passages.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))
    from gpt2train.convert.huggingface import read_model

    ours = evaluate_lambada(Scorer(read_model(model), load_tokenizer(model)), passages)
    theirs = harness(model, data)
    headline = ours["definitions"]["lambada_openai"]
    assert theirs["acc,none"] * len(passages) == pytest.approx(headline["correct"], abs=1e-6)
    assert theirs["perplexity,none"] == pytest.approx(headline["perplexity"], rel=1e-4)
    assert theirs["acc_stderr,none"] == pytest.approx(headline["standard_error"], rel=1e-4)
    return ours


@pytest.mark.exhaustive
def test_the_harness_counts_the_same_on_the_whole_set(harness: Harness, open_data: Path, tmp_path: Path) -> None:
    passages = read_passages((open_data / "lambada/lambada_test.jsonl").read_bytes(), "lambada")
    bpe = small_bpe(open_data / "bpe", tmp_path / "bpe")
    model = write(learn_last_words(passages[:150], bpe), tmp_path / "model", bpe)
    ours = check_equal(harness, passages, model, tmp_path)
    assert ours["passages"] == 5153 and ours["truncated"] > 5
    assert ours["definitions"]["lambada_openai"]["correct"] > 40
    assert all("LAMBADA's test set has" not in note for note in ours["notes"])
