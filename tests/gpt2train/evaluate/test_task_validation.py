"""Scores on tasks during a training: those of `gpt2train evaluate`, on every layout, and no effect on the training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.evaluate.eval_model import read_eval_model
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.tasks.suite import read_work, score_work
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.convert.model_folders import write_tokenizer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import VOCAB, curve, make, weights, write

RANKS = Path(__file__).parent.parent / "parity" / "train_runs.py"
LIMIT = 7  # items, no multiple of a batch
DYNAMIC = '{"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 5}'
# Model and layout; among them heads that the degree does not divide, and frequencies of the longest text of a batch.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pp2": ({}, {"pp": 2}),
    "zero3": ({}, {"zero": 3}),
    "tp2": ({}, {"tp": 2}),
    "interleaved": ({}, {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}),
    "three heads": ({"heads": 3, "hidden": 24}, {"tp": 2}),
    "five heads": ({"heads": 5, "hidden": 40, "family": "llama", "options": {"kv_heads": 1}}, {"tp": 2}),
    "dynamic": ({"family": "llama", "options": {"rope_scaling": DYNAMIC}}, {"pp": 2}),
}
EXHAUSTIVE = [pytest.param(name, marks=pytest.mark.exhaustive) for name in LAYOUTS if name != "pp2"]


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Any]:
    data = tmp_path / "data"
    data.mkdir()
    letters = "".join(chr(0x100 + number) for number in range(32)) * 5  # those with a token
    rows = [
        {
            "query": letters[number : number + 3 + number % 4],
            "choices": [letters[number + 5], letters[(number * 7) % 40 : (number * 7) % 40 + 2 + number % 3]],
            "gold": number % 2,
            "text": letters[number : number + 20],  # longer than the context
        }
        for number in range(12)
    ]
    (data / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = 'data = ["items.jsonl"]\ndelimiter = ""\n'
    (tmp_path / "choice.toml").write_text(f'kind = "multiple_choice"\n{head}')
    (tmp_path / "texts.toml").write_text(f'kind = "perplexity"\n{head}')
    (tmp_path / "both.toml").write_text(
        f'kind = "suite"\n[defaults]\nkind = "multiple_choice"\n{head}[tasks.one]\nrule = "core"\nshots = 1\n'
        "[tasks.two]\nrandom = 0.4\n"
    )
    names = [str(tmp_path / f"{name}.toml") for name in ("choice", "texts", "both")]
    return {"names": names, "data": str(data), "limit": LIMIT}


def run(tokens: Path, output: Path, tasks: dict[str, Any], **changes: Any) -> RunConfig:
    """A short run with a tokenizer in its folder; it validates twice."""
    output.mkdir()
    write_tokenizer(output / "tokenizer", VOCAB)
    base: dict[str, Any] = {
        "model": {"layers": 4, "dropout": 0.1},
        "steps": 4,
        "validation": {"interval": 2, "samples": 5, "sample": {"tokens": 0}, "tasks": tasks},
    }
    return make(tokens, output, **(base | changes))


def task_rows(config: RunConfig) -> list[dict[str, float]]:
    rows = [row for row in read_metrics(config.output) if "valid_loss" in row]
    return [{name: value for name, value in row.items() if name.startswith("valid_task_")} for row in rows]


def evaluated(config: RunConfig) -> dict[str, float]:
    tasks = config.validation.tasks
    found: dict[str, float] = {}
    folder = Path(config.output)
    subject = read_eval_model(folder, "cpu", folder / "tokenizer")
    scorer = Scorer(subject.model, subject.tokenizer)
    for name in tasks.names:
        work = read_work(name, Path(str(tasks.data)), limit=LIMIT)
        result, _ = score_work(scorer, work, LIMIT)
        accuracy, perplexity = ("accuracy", "accuracy_norm"), ("bits_per_byte", "word_perplexity")
        keys = {"choice": accuracy, "texts": perplexity, "both": ("centred",)}[work.name]
        found |= {f"valid_task_{work.file}_{key}": result[key] for key in keys}
    return found


def test_scores_are_those_of_the_command(tokens: Path, tmp_path: Path, alone: DistContext, tasks: Any) -> None:
    config = run(tokens, tmp_path / "run", tasks)
    train(config, alone)
    first, last = task_rows(config)
    assert len(last) == 5 and first.keys() == last.keys() and first != last
    assert last == pytest.approx(evaluated(config), rel=1e-4)
    plain = run(tokens, tmp_path / "plain", {})
    train(plain, alone)
    assert curve(config.output) == curve(plain.output)
    left, right = (weights(one.output) for one in (config, plain))
    assert all(left[name].equal(right[name]) for name in left)
    assert "tasks" not in (tmp_path / "plain/config.toml").read_text()


@pytest.mark.slow
def test_scores_every_second_validation_and_after_a_resume(
    tokens: Path, tmp_path: Path, alone: DistContext, tasks: dict[str, Any]
) -> None:
    whole = run(tokens, tmp_path / "whole", tasks | {"every": 2}, steps=6, checkpoints={"interval": 2, "keep": 9})
    train(whole, alone)
    rows = task_rows(whole)
    assert [bool(row) for row in rows] == [False, True, True]
    before = {name: tensor.clone() for name, tensor in weights(whole.output).items()}
    for name in ("step-00000006", "step-00000004"):
        shutil.rmtree(tmp_path / "whole/checkpoints" / name)
    train(whole, alone)
    assert task_rows(whole) == rows
    after = weights(whole.output)
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pp2", *EXHAUSTIVE])
def test_layouts_agree(name: str, tokens: Path, tmp_path: Path, tasks: dict[str, Any]) -> None:
    model, parallel = LAYOUTS[name]
    config = run(tokens, tmp_path / "run", tasks, model={"layers": 4, "dropout": 0.0} | model, parallel=parallel)
    run_ranks(RANKS, write(config))
    assert len(task_rows(config)[-1]) == 5
    assert task_rows(config)[-1] == pytest.approx(evaluated(config), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ["hellaswagg"]}, "there is no task 'hellaswagg'; did you mean 'hellaswag'"),
        ({"names": ["piqa"]}, "task piqa: .*data has no "),
        ({"data": "absent"}, "--data absent: there is no such file or folder"),
    ],
)
def test_mistakes_are_found_before_the_first_step(
    changes: dict[str, Any], message: str, tokens: Path, tmp_path: Path, alone: DistContext, tasks: dict[str, Any]
) -> None:
    config = run(tokens, tmp_path / "run", tasks | changes)
    with pytest.raises(UserError, match=message):
        train(config, alone)
    assert not read_metrics(config.output)


def test_tasks_need_a_tokenizer_and_data(tokens: Path, tmp_path: Path, alone: DistContext, tasks: Any) -> None:
    config = make(tokens, tmp_path / "run", steps=4, validation={"interval": 2, "tasks": tasks})
    with pytest.raises(UserError, match=r"validation\.tasks need the tokenizer of the run; put it into "):
        train(config, alone)
    with pytest.raises(UserError, match=r"validation\.tasks: tasks\.names needs tasks\.data"):
        make(tokens, tmp_path / "other", validation={"tasks": tasks | {"data": None}})
