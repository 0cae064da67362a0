"""Tasks against lm-evaluation-harness's own tasks: the same log-probabilities and answers, example by example."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.lambada import evaluate_lambada
from gpt2train.evaluate.passages import read_passages
from gpt2train.evaluate.tasks.suite import read_work, score_work
from tests.gpt2train.evaluate.eval_sets import HARNESS, SETS, SPLIT, write_set
from tests.gpt2train.evaluate.small_models import noisy_model, write

READY = Path(__file__).parents[3] / "gpt2train/evaluate/tasks/ready"
WRITTEN = """
task: documents_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, open_data: Path) -> Path:
    """A model with random weights, large enough that its answers differ; some prompts exceed its context."""
    folder = tmp_path_factory.mktemp("model")
    bpe, network = noisy_model(open_data, folder, 320)
    return write(network, folder / "model", bpe)


def harness_samples(model: Path, names: list[str], yaml: dict[str, str], folder: Path) -> dict[str, Any]:
    """Results of the harness on tasks: `samples` and `results`, by the names of the tasks."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is in the extra peers")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = folder / "tasks"
    tasks.mkdir()
    for name in names:
        (tasks / f"{name}.yaml").write_text(yaml[name])
    network = HFLM(pretrained=str(model), device="cpu", batch_size=32, dtype="float32")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found: dict[str, Any] = lm_eval.simple_evaluate(
        model=network, tasks=[f"{name}_local" for name in names], task_manager=manager, bootstrap_iters=0
    )
    return found


def own_scores(model: Path, task: str, data: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    work = read_work(task, data)
    result, samples = score_work(Scorer(read_model(model), load_tokenizer(model)), work)
    return result, samples[work.name]


def check_evaluation(model: Path, data: Path, summary: dict[str, float], shots: int) -> None:
    """Hold the evaluation `lambada`, which is no task, against the harness's `lambada_openai`."""
    passages = read_passages(data.read_bytes(), "lambada")
    ours = evaluate_lambada(Scorer(read_model(model), load_tokenizer(model)), passages)["definitions"]["lambada_openai"]
    if not shots:
        assert summary["acc,none"] * len(passages) == pytest.approx(ours["correct"], abs=1e-6)
        assert summary["perplexity,none"] == pytest.approx(ours["perplexity"], rel=1e-4)


def check_tasks(model: Path, real_data: Path, tmp_path: Path, count: int, shots: int = 0) -> None:
    """Hold log-probabilities and answers of all tasks against the harness's."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is in the extra peers")
    root = Path(lm_eval.__file__).parent / "tasks"
    names = list(HARNESS) if not shots else ["arc_easy", "winogrande", "lambada_openai"]
    data = {name: write_set(name, real_data / "eval", count, tmp_path) for name in names}
    yaml = {name: SPLIT.format(file=root / HARNESS[name], name=name, data=data[name], shots=shots) for name in names}
    if shots:  # its target begins with a space, and few-shot examples would have two
        yaml["lambada_openai"] += 'target_delimiter: ""\n'
    theirs = harness_samples(model, names, yaml, tmp_path)
    truncated = 0
    for name in names:
        task = name
        if shots:
            ready = (READY / name).with_suffix(".toml").read_text()
            (tmp_path / f"{name}.toml").write_text(f"shots = {shots}\n{ready}")
            task = str(tmp_path / f"{name}.toml")
        result, samples = own_scores(model, task, data[name])
        expected = sorted(theirs["samples"][f"{name}_local"], key=lambda sample: sample["doc_id"])
        assert len(samples) == len(expected) > 0
        for own, other in zip(samples, expected, strict=True):
            expected_log_probs = [value for [(value, _)] in other["resps"]]
            assert own["log_probs"] == pytest.approx(expected_log_probs, rel=5e-7, abs=1e-4), (name, own)
            assert own["correct"] == bool(other["acc"]), (name, own)
        summary = theirs["results"][f"{name}_local"]
        assert result["accuracy"] == pytest.approx(summary["acc,none"], abs=1e-5)
        if "acc_norm,none" in summary:
            assert result["accuracy_norm"] == pytest.approx(summary["acc_norm,none"], abs=1e-5)
        if "perplexity,none" in summary:
            assert result["perplexity"] == pytest.approx(summary["perplexity,none"], rel=1e-4)
            check_evaluation(model, data[name], summary, shots)
        truncated += result["truncated"]
    assert truncated > 0


@pytest.mark.slow
def test_every_example_scores_as_in_the_harness(model: Path, real_data: Path, tmp_path: Path) -> None:
    assert SETS.keys() == HARNESS.keys()
    check_tasks(model, real_data, tmp_path, 40)


@pytest.mark.exhaustive
def test_examples_before_an_item_are_those_of_the_harness(model: Path, real_data: Path, tmp_path: Path) -> None:
    check_tasks(model, real_data, tmp_path, 60, shots=2)


@pytest.mark.exhaustive
def test_bits_per_byte_are_those_of_the_harness(model: Path, open_data: Path, tmp_path: Path) -> None:
    lines = (open_data / "lambada/lambada_test.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:40]]
    texts += ["\n\n".join(texts[start : start + 9]) for start in range(0, 27, 9)]  # longer than the context
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    theirs = harness_samples(model, ["documents"], {"documents": WRITTEN.format(data=data)}, tmp_path)
    result, samples = own_scores(model, "documents", data)
    expected = sorted(theirs["samples"]["documents_local"], key=lambda sample: sample["doc_id"])
    for own, other in zip(samples, expected, strict=True):
        assert own["log_probs"][0] == pytest.approx(other["word_perplexity"][0], rel=1e-6)
    summary = theirs["results"]["documents_local"]
    assert result["bits_per_byte"] == pytest.approx(summary["bits_per_byte,none"], rel=1e-5)
    assert result["word_perplexity"] == pytest.approx(summary["word_perplexity,none"], rel=1e-4)
