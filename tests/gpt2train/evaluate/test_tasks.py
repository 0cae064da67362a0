"""Tasks: descriptions, items and their mistakes, common prefixes, intervals, and the command."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.cli import app
from gpt2train.data.tokenizer import end_of_text_id, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.registry import EVALUATIONS
from gpt2train.evaluate.scoring import score
from gpt2train.evaluate.scoring_request import ScoringRequest
from gpt2train.evaluate.tasks import as_evaluation, description
from gpt2train.evaluate.tasks.bootstrap import interval, resampled_sums
from gpt2train.evaluate.tasks.description import Suite, Task, parse_description, read_description, ready_files
from gpt2train.evaluate.tasks.items import DataFile, Item, read_items
from gpt2train.evaluate.tasks.lm_eval_rule import rolling_windows
from gpt2train.evaluate.tasks.scores import score_task
from gpt2train.evaluate.tasks.shots import core_examples, lm_eval_examples
from gpt2train.evaluate.token_tree import build_trees, tree_batches
from gpt2train.evaluate.tree_scoring import score_shared
from gpt2train.io.command_line import run_command
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from tests.gpt2train.evaluate.overfitted_model import write
from tests.gpt2train.evaluate.small_models import noisy_model
from tests.gpt2train.models import lively
from tests.trained_run import TrainedRun

CHOICES = {"kind": "multiple_choice", "data": ["items.jsonl"]}
Call = Callable[..., tuple[int, list[str], str]]


def task_of(**fields: Any) -> Task:
    """A task of these fields."""
    task = parse_description(CHOICES | fields, "t.toml")
    assert isinstance(task, Task)
    return task


def items_of(task: Task, *rows: Any) -> list[Item]:
    """Items of rows."""
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return read_items(task, "t", [DataFile("items.jsonl", lines)])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, open_data: Path) -> Any:
    """Tokenizer folder, model and model folder."""
    folder = tmp_path_factory.mktemp("small")
    bpe, model = noisy_model(open_data, folder, 64)
    return bpe, model, write(model, folder / "model", bpe)


def test_every_description_of_the_package_is_valid() -> None:
    names = list(ready_files())
    assert {"blimp", "core", "hellaswag", "lambada_openai", "piqa", "xcopa_zh", "documents"} <= set(names)
    for name in names:
        label, description = read_description(name)
        assert label == name and description.about
        for task in description.tasks.values() if isinstance(description, Suite) else [description]:
            with pytest.raises(UserError, match=r"items\.jsonl line 1: task t: .*undefined"):
                items_of(task, {"passage": "a"})
    _, core = read_description("core")
    assert isinstance(core, Suite) and len(core.tasks) == 22
    assert read_description("core/boolq")[1] == core.tasks["boolq"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": ["x"]}, "t.toml: kind: field required"),
        ({"kind": "multiple_choice"}, "t.toml: data: field required"),
        ({"kind": "choices", "data": ["x"]}, "t.toml: kind: "),
        (CHOICES | {"shot": 3}, "unknown setting 'shot'; did you mean 'shots'"),
        (CHOICES | {"target": "x"}, "a multiple_choice task has no target; leave it out"),
        ({"kind": "perplexity", "data": ["x"], "rule": "core"}, "a perplexity task has no shots"),
        ({"kind": "suite"}, "a suite has a table"),
        ({"kind": "suite", "tasks": {"a": 3}}, "t.toml: tasks.a"),
        ({"kind": "suite", "tasks": {"a": {"kind": "greedy"}}}, "t.toml: tasks.a.data: field required"),
    ],
)
def test_mistakes_of_a_description(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_description(content, "t.toml")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        ({}, {"query": "a", "choices": ["b", "c"]}, "'gold' is undefined"),
        ({}, {"query": "a", "choices": ["b", "c"], "gold": 2}, "the answer 2 is none of the choices 0 to 1"),
        ({}, {"query": "a", "choices": ["b", "c"], "gold": -1}, "the answer -1 is none of the choices 0 to 1"),
        ({}, {"query": "a", "choices": ["b", "c"], "gold": "x"}, "expected the index of a choice, got 'x'"),
        ({}, {"query": "a", "choices": ["b", "c"], "gold": 1.5}, "expected the index of a choice, got 1.5"),
        ({}, {"query": "a", "choices": ["b"], "gold": 0}, "an item needs two choices or more, and has 1"),
        ({}, {"query": "a", "choices": ["b", ""], "gold": 0}, "a continuation is empty"),
        ({}, {"query": "a", "choices": ["b", 3], "gold": 0}, "expected a list of texts"),
        ({}, {"query": "a", "choices": "bc", "gold": 0}, "expected a list of texts, got str"),
        ({}, {"query": "a", "choices": 7, "gold": 0}, "expected a list of texts, got int"),
        ({}, ["a"], "no JSON object"),
        ({"context": "{{ query.missing.part }}"}, {"query": "a"}, "undefined"),
        ({"context": "{{ query.__class__.__mro__ }}"}, {"query": "a", "choices": ["b", "c"], "gold": 0}, "unsafe"),
        ({"group": "source"}, {"query": "a", "choices": ["b", "c"], "gold": 1}, "'source' is undefined"),
    ],
)
def test_mistakes_of_a_row(fields: dict[str, Any], row: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        items_of(task_of(**fields), row)
    assert "items.jsonl line 1: " in str(error.value) and message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"a": "\\ud800"}', b"3", b"", b"\n\n", b"[" * 9999])
def test_malformed_data(content: bytes) -> None:
    with pytest.raises(UserError, match=r"x\.jsonl"):
        read_items(task_of(), "t", [DataFile("x.jsonl", content)])


def test_malformed_templates_and_too_many_shots() -> None:
    row = {"query": "a", "choices": ["b", "c"], "gold": 0}
    with pytest.raises(UserError, match=r"task t: context: .*correct the template"):
        items_of(task_of(context="{{ query"), row)
    with pytest.raises(UserError, match=r"task t: answer: .*correct the expression"):
        items_of(task_of(answer="gold +"), row)
    with pytest.raises(UserError, match="3 shots need more than 3 items"):
        items_of(task_of(shots=3), row, row, row)


def test_examples_of_equal_items() -> None:
    """lm-evaluation-harness shows no example that is equal to the item: copies leave too few of them."""
    row = {"query": "a", "choices": ["b", "c"], "gold": 0}
    others = [row | {"query": "b"}, row | {"query": "c", "gold": 1}]
    with pytest.raises(UserError, match="task t: 3 shots of other items, but 3 of the 5 items are equal; remove"):
        items_of(task_of(shots=3), row, row, row, *others)
    drawn = lm_eval_examples(items_of(task_of(shots=2), row, row, row, *others), 2, 5)
    assert all(item.contexts != ("a",) for example in drawn[:3] for item in example)
    assert len(core_examples(items_of(task_of(shots=4, rule="core"), *[row] * 4, others[1]), 4)) == 5


@pytest.mark.parametrize("rule", ["lm-eval", "core"])
def test_equal_choices_are_noted(small: Any, rule: str) -> None:
    bpe, model, _ = small
    rows = [{"query": f"{n} is", "choices": ["one", "two" if n else "one"], "gold": n % 2} for n in range(4)]
    task = task_of(rule=rule)
    result = score_task(Scorer(model, load_tokenizer(bpe)), task, "t", items_of(task, *rows)).result
    expected = "t: 1 of 4 items have equal choices, of which the first one counts as the model's answer"
    assert result["notes"] == [expected]


def test_an_interval_without_width_is_noted(small: Any) -> None:
    """At an accuracy of 0.14, 5 of 100 samples of 20 items have no right one."""
    bpe, model, _ = small
    rows = [{"context": f"{n} is", "continuation": "zebra"} for n in range(120)]
    task = task_of(kind="greedy")
    scorer, items = Scorer(model, load_tokenizer(bpe)), items_of(task, *rows)
    found = score_task(scorer, task, "t", items, 20).result
    assert found["accuracy_interval"] == [0, 0]
    expected = (
        "t: all 20 items have the same verdict, of which the bootstrap makes no interval; accuracies up to 0.14 are"
    )
    assert found["notes"][1:] == [] and found["notes"][0].startswith(expected)
    assert score_task(scorer, task, "t", items).result["notes"] == []


def test_a_continuation_that_joins_the_context_is_an_error_with_the_task(small: Any) -> None:
    bpe, model, _ = small
    task = task_of(delimiter="")
    rows = [{"query": "th", "choices": ["e", "is"], "gold": 0}]
    with pytest.raises(UserError, match=r"^task t: item 1: the tokenizer has no token for a continuation"):
        score_task(Scorer(model, load_tokenizer(bpe)), task, "t", items_of(task, *rows))


@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=2, max_size=8).flatmap(
            lambda tokens: st.integers(1, len(tokens) - 1).map(lambda scored: ScoringRequest(tuple(tokens), scored))
        ),
        max_size=12,
    ),
    st.integers(1, 40),
)
def test_trees_hold_every_request_once(requests: list[ScoringRequest], batch_tokens: int) -> None:
    trees = build_trees(requests, 4, batch_tokens)
    assert sorted(index for tree in trees for index in tree.requests) == list(range(len(requests)))
    for tree in trees:
        for index, nodes, targets in zip(tree.requests, tree.nodes, tree.targets, strict=True):
            path, node = [], nodes[-1]
            while node >= 0:
                path.append(tree.tokens[node])
                node = tree.parents[node]
            assert tuple(reversed(path)) == requests[index].tokens[:-1]
            assert targets == requests[index].tokens[-requests[index].scored :]
            assert tree.depths[nodes[-1]] == len(path) - 1
    batches = tree_batches(trees, 4, batch_tokens)
    assert sorted(tree for batch in batches for row in batch for tree in row) == list(range(len(trees)))
    for batch in batches:
        lengths = [sum(len(trees[tree]) for tree in row) for row in batch]
        assert max(len(trees[tree]) for row in batch for tree in row) == len(trees[batch[0][0]])
        assert len(batch) == 1 or len(batch) * max(lengths) <= batch_tokens


@given(st.integers(2, 40), st.integers(1, 9))
def test_windows_score_every_token_once(length: int, context: int) -> None:
    tokens = list(range(length))
    found = list(rolling_windows(tokens, context))
    assert [token for request in found for token in request.tokens[-request.scored :]] == tokens[1:]
    assert all(len(request.tokens) <= context + 1 for request in found)
    assert length <= context or all(len(request.tokens) == context + 1 for request in found)


def test_shared_prefixes_change_no_score(small: Any) -> None:
    _, model, _ = small
    draw = random.Random(1)
    requests = []
    for _ in range(30):
        context = [draw.randrange(300) for _ in range(draw.randrange(1, 40))]
        for _ in range(draw.randrange(1, 5)):
            target = [draw.randrange(300) for _ in range(draw.randrange(1, 9))]
            requests.append(ScoringRequest((*context, *target), len(target)))
    requests += requests[:3]
    plain = score(model, requests)
    for batch_tokens in (1, 100, 4096):
        for own, other in zip(score_shared(model, requests, batch_tokens), plain, strict=True):
            assert own.log_probs == pytest.approx(other.log_probs, abs=2e-5)
            assert own.greedy == other.greedy


@pytest.mark.parametrize("scoring", [score, score_shared])
def test_scores_with_dynamic_rotary_scaling_do_not_depend_on_the_batch(scoring: Callable[..., Any]) -> None:
    scaling = '{"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}'
    shape = Shape(97, layers=1, heads=2, hidden=16, context=32, family="llama", options=(("rope_scaling", scaling),))
    model = lively(MODELS["llama"].complete(shape))
    draw = random.Random(2)
    tokens = [tuple(draw.randrange(97) for _ in range(length)) for length in (3, 7, 9, 12, 20, 20, 33, 33)]
    requests = [ScoringRequest(sequence, min(len(sequence) - 1, 4)) for sequence in tokens]
    alone = [scoring(model, [request])[0].log_probs for request in requests]
    for found, expected in zip(scoring(model, requests), alone, strict=True):
        assert found.log_probs == pytest.approx(expected, abs=2e-5)


def test_a_greedy_match_is_what_the_model_generates(small: Any) -> None:
    bpe, model, _ = small
    tokenizer = load_tokenizer(bpe)
    for rule, start in (("lm-eval", []), ("core", [end_of_text_id(tokenizer)])):
        rows = []
        for number in range(60):
            context = f"Item {number} of the list is"
            ids = tokenizer.encode(context).ids
            hidden = model.hidden(torch.tensor([[*start, *ids]]))[0, -1]
            best = int(torch.nn.functional.linear(hidden, model.wte.weight[: model.shape.vocab]).argmax())
            word = tokenizer.decode([best])
            if word.startswith(" ") and tokenizer.encode(context + word).ids == [*ids, best]:
                rows += [{"context": context, "continuation": other} for other in (word[1:], "zebra")]
        assert len(rows) > 2
        task = parse_description({"kind": "greedy", "data": ["x"], "rule": rule}, "t")
        assert isinstance(task, Task)
        found = score_task(Scorer(model, tokenizer), task, "t", items_of(task, *rows))
        assert found.result["accuracy"] == 0.5
        assert all(sample["correct"] == (sample["item"] % 2 == 0) for sample in found.samples)


def test_bootstrap_intervals() -> None:
    draw = random.Random(0)
    values = [float(draw.random() < 0.3) for _ in range(400)]
    [sums] = resampled_sums([values], "seed")
    low, high = interval(sums / 400)
    share = sum(values) / 400
    error = (share * (1 - share) / 400) ** 0.5
    assert low == pytest.approx(share - 1.96 * error, abs=0.008)
    assert high == pytest.approx(share + 1.96 * error, abs=0.008)
    assert (resampled_sums([values], "seed") == sums).all()
    assert (resampled_sums([values], "other") != sums).any()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """A command in this process: exit code, lines, errors."""

    def run(*arguments: object) -> tuple[int, list[str], str]:
        code = run_command(app, ["evaluate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data of two tasks and of a suite."""
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    rows = [
        {"query": f"{n} is", "choices": ["a number", "a horse of"], "gold": n % 2, "part": "ab"[n % 2]}
        for n in range(8)
    ]
    (data / "deep/items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "texts.jsonl").write_text('{"text": "A text of some words."}\n{"text": "Another one."}')
    (tmp_path / "choice.toml").write_text(
        'kind = "multiple_choice"\ndata = ["**/items.jsonl"]\ngroup = "part"\n[published]\n'
        '"Another model" = { accuracy = 0.75 }\n'
    )
    (tmp_path / "lambada.toml").write_text('kind = "perplexity"\ndata = ["texts.jsonl"]\n')
    (tmp_path / "both.toml").write_text(
        'kind = "suite"\n[defaults]\nrule = "core"\nkind = "multiple_choice"\n[tasks.one]\ndata = ["**/items.jsonl"]\n'
        '[tasks.two]\ndata = ["**/items.jsonl"]\nshots = 2\nrandom = 0.4\n[tasks.three]\ndata = ["absent.jsonl"]\n'
    )
    return tmp_path


def test_command(call: Call, folder: Path, small: Any) -> None:
    model = folder / "model"
    model.symlink_to(small[2])
    tasks = [folder / "choice.toml", "documents", folder / "both.toml"]
    flags = ["--model", model, "--data", folder / "data", "--partial", "--log-samples"]
    (folder / "data/deep/items.jsonl").rename(folder / "data/deep/items.jsonl.kept")
    assert call(*tasks, *flags)[0] == 2
    (folder / "data/deep/items.jsonl.kept").rename(folder / "data/deep/items.jsonl")
    code, out, err = call(*tasks, *flags)
    assert (code, err) == (0, "")
    rows = {tuple(line.split()[:2]): line for line in out}
    assert out[0].split()[:3] == ["task", "metric", "items"]
    assert rows["choice", "accuracy"].endswith("Another model 0.7500") and " 0.5000 " in rows["choice", "accuracy"]
    assert ("choice", "accuracy_norm") in rows and ("documents", "bits_per_byte") in rows
    assert ("both/one", "accuracy") in rows and ("both/two", "accuracy") in rows
    assert any(line.startswith("note: both: mean of 2 tasks, without three") for line in out)
    results = small[2] / "eval"
    found = json.loads((results / "both.json").read_text())
    one, two = found["tasks"]["both/one"], found["tasks"]["both/two"]
    assert two["centred"] == pytest.approx((two["accuracy"] - 0.4) / 0.6, abs=1e-5)
    assert found["centred"] == pytest.approx((one["centred"] + two["centred"]) / 2, abs=1e-5)
    choice = json.loads((results / "choice.json").read_text())
    assert [choice["groups"][name]["items"] for name in "ab"] == [4, 4]
    low, high = choice["accuracy_interval"]
    assert low <= choice["accuracy"] <= high
    samples = [json.loads(line) for line in (results / "choice.samples.jsonl").read_text().splitlines()]
    assert [sample["item"] for sample in samples] == list(range(8))
    assert sum(sample["correct"] for sample in samples) / 8 == choice["accuracy"]
    before = (results / "choice.json").read_bytes()
    assert call(folder / "choice.toml", *flags)[0] == 0
    assert (results / "choice.json").read_bytes() == before
    output = folder / "all.json"
    code, out, _ = call(*tasks[:2], *flags[:4], "--output", output, "--limit", 1)
    assert (code, out[-1]) == (0, f"scores: {output}")
    assert [row["task"] for row in json.loads(output.read_text())["results"]] == ["choice", "documents"]
    assert any("choice: scored on 1 items of each task, not on all" in line for line in out)
    assert (results / "choice.json").read_bytes() == before


def test_a_task_in_the_curve_of_a_run(call: Call, folder: Path, trained_run: TrainedRun, tmp_path: Path) -> None:
    root = tmp_path / "out"
    shutil.copytree(trained_run.root, root)
    flags = ["--evals.documents", folder / "data/texts.jsonl", "--tokenizer", root / "tokenizer"]
    code, out, err = call("curve", root / "runs/small", *flags)
    assert (code, err) == (0, "")
    assert "documents bits_per_byte" in out[0]
    [point] = json.loads((root / "runs/small/scores/curve.json").read_text())["points"]
    assert point["documents"]["items"] == 2 and point["documents"]["bits_per_byte"] > 1
    with pytest.raises(UserError, match="there is no evaluation 'core'"):
        EVALUATIONS["core"]


def test_suites_and_descriptions_in_the_curve_of_a_run(
    call: Call, folder: Path, trained_run: TrainedRun, tmp_path: Path
) -> None:
    """The last checkpoint has the table of tasks; an edited description, other data or another limit score again."""
    root = tmp_path / "out"
    shutil.copytree(trained_run.root, root)
    scores = root / "runs/small/scores"
    choice, both = folder / "choice.toml", folder / "both.toml"
    flags = ["--task-data", folder / "data", "--partial", "--tokenizer", root / "tokenizer"]

    def reused(*tasks: object) -> int:
        code, out, err = call("curve", root / "runs/small", "--tasks", *tasks, *flags)
        assert (code, err) == (0, "")
        lines[:] = out
        return int(json.loads((scores / "curve.json").read_text())["reused"])

    lines: list[str] = []
    assert reused(choice, both) == 0
    assert "choice accuracy" in lines[0] and "both centred" in lines[0] and "both/one" not in lines[0]
    [point] = json.loads((scores / "curve.json").read_text())["points"]
    assert set(point["both"]["tasks"]) == {"both/one", "both/two"}
    rows = {tuple(line.split()[:2]): line for line in lines}
    low, high = point["choice"]["accuracy_interval"]
    assert f" {point['choice']['accuracy']:.4f} [{low:.4f}, {high:.4f}] " in rows["choice", "accuracy"]
    assert rows["choice", "accuracy"].endswith("0.5000  Another model 0.7500")
    assert ("both/one", "accuracy") in rows and ("both", "centred") in rows
    assert any(line.startswith("note: both: mean of 2 tasks") for line in lines)
    assert reused(choice, both) == 2
    [cached] = scores.glob("step-*/choice-*.json")
    before = cached.read_bytes()
    cached.write_bytes(before[:40])  # damaged: scored again, and replaced
    assert reused(choice, both) == 1 and cached.read_bytes() == before
    choice.write_text(choice.read_text().replace("[published]", 'delimiter = "  "\n[published]'))
    assert reused(choice, both) == 1
    flags += ["--limit", 3]
    assert reused(choice, both) == 0 and any("scored on 3 items" in line for line in lines)
    assert call("curve", root / "runs/small", "--tasks", choice)[2].count("give --task-data") == 1


def test_an_edited_description_of_the_package_scores_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity of an evaluation is that of its description."""
    before = EVALUATIONS["hellaswag"].identity
    assert before and before != EVALUATIONS["piqa"].identity and not EVALUATIONS["lambada"].identity
    ready = ready_files()
    text = ready["hellaswag"].read_text(encoding="utf-8")
    (folder / "hellaswag.toml").write_text("shots = 1\n" + text)
    changed = {**ready, "hellaswag": folder / "hellaswag.toml"}
    for module in (as_evaluation, description):
        monkeypatch.setattr(module, "ready_files", lambda: changed)
    assert EVALUATIONS["hellaswag"].identity != before


def test_without_a_task_the_help_is_shown(call: Call) -> None:
    code, out, _ = call()
    assert code == 0 and any("lambada" in line for line in out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["helaswag", "--model", "m", "--data", "d"], "there is no task 'helaswag'; did you mean 'hellaswag'"),
        (["core/bolq", "--model", "m", "--data", "d"], "did you mean 'core/boolq'"),
        (["hellaswag", "--data", "d"], "evaluate hellaswag: give --model"),
        (["hellaswag", "--model", "m"], "evaluate hellaswag: give --data"),
        (["hellaswag", "--model", "m", "--data", "{data}"], "has no **/hellaswag_val.jsonl; put the data there (from "),
        (["hellaswag", "--model", "m", "--data", "{data}/absent"], "there is no such file or folder"),
        (["{data}/absent.toml", "--model", "m", "--data", "{data}"], "cannot read the settings file"),
        (["{folder}/both.toml", "--model", "m", "--data", "{data}"], "score the other tasks with --partial"),
        (["{folder}/both.toml", "--model", "m", "--data", "{data}/texts.jsonl"], "needs the folder of the data files"),
        (
            ["{folder}/both.toml", "--model", "m", "--data", "{data}", "--partial", "--limit", "2"],
            "--limit 2; give more",
        ),
        (["{folder}/lambada.toml", "--model", "m", "--data", "{data}"], "task 'lambada': curve, "),
        (["documents", "documents", "--model", "m", "--data", "{data}"], "given twice"),
        (["documents", "--model", "m", "--data", "{data}/deep/items.jsonl"], "'text' is undefined"),
    ],
)
def test_mistakes_are_one_error_line(call: Call, folder: Path, arguments: list[str], message: str) -> None:
    code, _, err = call(*(argument.format(folder=folder, data=folder / "data") for argument in arguments))
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_an_ambiguous_name_of_a_data_file(call: Call, folder: Path) -> None:
    (folder / "data/items.jsonl").write_bytes((folder / "data/deep/items.jsonl").read_bytes())
    code, _, err = call(folder / "choice.toml", "--model", "m", "--data", folder / "data")
    assert code == 2 and "both fit **/items.jsonl; give --data the folder of one" in err
