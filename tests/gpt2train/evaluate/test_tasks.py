"""Tasks: descriptions, items and their mistakes, common prefixes, and intervals."""

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.tokenizer import end_of_text_id, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.scoring import score, score_shared
from gpt2train.evaluate.scoring_request import ScoringRequest
from gpt2train.evaluate.tasks import core_rule, items, lm_eval_rule
from gpt2train.evaluate.tasks.bootstrap import interval, resampled_sums
from gpt2train.evaluate.tasks.description import Suite, Task, parse_description, read_description, ready_files
from gpt2train.evaluate.tasks.items import DataFile, Item, find_data, has_data, read_items
from gpt2train.evaluate.tasks.lm_eval_rule import rolling_windows
from gpt2train.evaluate.tasks.scores import _notes, score_task
from gpt2train.evaluate.tasks.suite import read_work
from gpt2train.evaluate.token_tree import build_trees, tree_batches
from gpt2train.model.families import MODELS, Shape
from tests.gpt2train.convert.model_folders import write
from tests.gpt2train.models import lively, noisy_model

CHOICES = {"kind": "multiple_choice", "data": ["items.jsonl"]}


def task_of(**fields: Any) -> Task:
    task = parse_description(CHOICES | fields, "t.toml")
    assert isinstance(task, Task)
    return task


def items_of(task: Task, *rows: Any) -> list[Item]:
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return read_items(task, "t", [DataFile("items.jsonl", lines)])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, open_data: Path) -> Any:
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
    drawn = lm_eval_rule.draw_examples(items_of(task_of(shots=2), row, row, row, *others), 2, 5)
    assert all(item.contexts != ("a",) for example in drawn[:3] for item in example)
    assert len(core_rule.draw_examples(items_of(task_of(shots=4, rule="core"), *[row] * 4, others[1]), 4)) == 5


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


def packed(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def test_the_rows_of_an_archive_are_those_of_its_files(tmp_path: Path) -> None:
    rows = [{"query": f"{n}", "choices": ["a", "b"], "gold": n % 2, "part": f"{n // 3}"} for n in range(9)]
    parts = {f"data/{n}.jsonl": "".join(json.dumps(row) + "\n" for row in rows[3 * n : 3 * n + 3]) for n in range(3)}
    members = {name: text.encode() for name, text in reversed(parts.items())}
    others = {"__MACOSX/data/._0.jsonl": b"\0", "data/.hidden.jsonl": b"{", "README.md": b"rows", "data/": b""}
    (tmp_path / "Set.zip").write_bytes(packed(**members, **others))
    task = task_of(data=["**/set/*.jsonl", "**/Set.zip"], group="part")
    found = read_items(task, "t", find_data(task, "t", tmp_path))
    assert found == items_of(task, *rows) and [item.group for item in found[::3]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(**{"a.jsonl": b"{}\n" * 900})[:-40], "Set.zip cannot be unpacked .*; unpack it or fetch it again"),
        (packed(**{"a.jsonl": bytes(range(256)) * 9}).replace(b"c`dbfa", b"c`dbfb"), "cannot be unpacked"),
        (packed(**{"a.txt": b"{}"}), r"Set.zip has no \*.jsonl in it"),
        (packed(**{"a.jsonl": b" " * 40_000, "b.jsonl": b" " * 40_000}), "Set.zip has more than 65,536 bytes of rows"),
        (packed(**{"a.jsonl": b"{"}), r"Set.zip/a.jsonl line 1: no JSON object"),
        (packed(**{"a.jsonl": '{"text": "a b"}'.encode("utf-16")}), r"Set.zip/a.jsonl: it is UTF-16, not UTF-8; conv"),
        (packed(zipfile.ZIP_LZMA, **{"a.jsonl": b"{}"}).replace(b"\x05\x00\x5d", b"\x05\x00\xff"), "unpacked"),
        (gzip.compress(b"{}"), "Set.zip is compressed by gzip; unpack it, or give a ZIP archive"),
        (pa.compress(b"{}", codec="zstd", asbytes=True), "Set.zip is compressed by zstd"),
    ],
    ids=["cut off", "damaged", "no rows", "too large", "no JSON", "UTF-16", "damaged lzma", "gzip", "zstd"],
)
def test_malformed_archives(content: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MAX_UNPACKED", 1 << 16)
    with pytest.raises(UserError, match=message):
        read_items(task_of(), "t", [DataFile("Set.zip", content)])


def read_rows_of(task: Task, rows: list[dict[str, Any]], labels: bytes | None = None) -> list[Item]:
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return read_items(task, "x", [DataFile("folder/dev.jsonl", raw, labels)])


def test_labels_beside_the_data_are_those_of_the_rows(tmp_path: Path) -> None:
    """PIQA as its authors give it out: the labels are a file of their own, whose content counts in the hash."""
    rows = [{"goal": f"goal {n}", "sol1": "one", "sol2": "two"} for n in range(4)]
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa/valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"label.*put the labels beside it, as valid-labels\.lst"):
        read_work("piqa", tmp_path)
    (tmp_path / "piqa/valid-labels.lst").write_text("0\n1\n1\n0\n")
    work = read_work("piqa", tmp_path)
    assert [item.answer for item in work.parts[0].items] == [0, 1, 1, 0]
    (tmp_path / "piqa/valid-labels.lst").write_bytes(b"\xef\xbb\xbf0\r\n1\r\n1\r\n0\r\n")  # as editors of Windows write
    assert [item.answer for item in read_work("piqa", tmp_path).parts[0].items] == [0, 1, 1, 0]
    (tmp_path / "piqa/valid-labels.lst").write_text("1\n1\n1\n0\n")
    assert read_work("piqa", tmp_path).identity() != work.identity()
    (tmp_path / "piqa/valid-labels.lst").write_text("1\n0\n")
    with pytest.raises(UserError, match="4 rows and 2 labels beside them"):
        read_work("piqa", tmp_path)


def test_labels_without_variation_are_noted() -> None:
    """Unless the description says that the right answer is always there, or there are only a few rows."""
    rows = [{"query": f"{n}", "choices": ["a", "b"], "gold": 1} for n in range(6)]
    task = Task(kind="multiple_choice", data=("x.jsonl",))
    schema = Task(kind="schema", data=("x.jsonl",))
    options = [{"context_options": ["a", "b"], "continuation": "c", "gold": 0} for _ in range(5)]

    def noted(task: Task, rows: list[dict[str, Any]]) -> list[str]:
        return _notes(task, {"task": "t", "items": len(rows), "truncated": 0}, read_rows_of(task, rows))

    [note] = noted(task, rows)
    assert note.startswith("t: all 6 answers are choice 1, so that a model that always gives it seems perfect")
    assert noted(task, rows[:4]) == noted(task, [*rows, {**rows[0], "gold": 0}]) == []
    assert noted(task.model_copy(update={"answer": 1}), rows) == []
    assert "all 5 answers are choice 0" in noted(schema, options)[0]


@pytest.mark.parametrize("name", ["/items.jsonl", "", ".", "./"])
def test_a_malformed_name_of_data(name: str, tmp_path: Path) -> None:
    task = task_of(data=[name])
    with pytest.raises(UserError, match=r"task t: data: .* is no name in a folder .*; correct it"):
        find_data(task, "t", tmp_path)
    assert not has_data(task, tmp_path)
