"""Rules of tasks: CORE as nanochat computes it, by a plain computation of whole prompts; the harness's own tasks."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id, load_tokenizer
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.lambada import evaluate_lambada
from gpt2train.evaluate.passages import read_passages
from gpt2train.evaluate.tasks.description import Task, parse_description, read_description
from gpt2train.evaluate.tasks.items import DataFile, read_items
from gpt2train.evaluate.tasks.scores import score_task
from gpt2train.evaluate.tasks.suite import read_work, score_work
from gpt2train.model.gpt2 import GPT2
from tests.gpt2train.convert.model_folders import write
from tests.gpt2train.evaluate.eval_sets import HARNESS, SETS, SPLIT, rows_of, write_set
from tests.gpt2train.models import noisy_model

CONTEXT = 160
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from"


def prompts(kind: str, row: dict[str, Any], delimiter: str, shown: str) -> list[str]:
    """The prompts of a row after its examples."""
    if kind == "multiple_choice":
        return [shown + row["query"] + delimiter + choice for choice in row["choices"]]
    if kind == "schema":
        return [shown + context + delimiter + row["continuation"] for context in row["context_options"]]
    begin = shown + row["context"].strip() + delimiter
    return [begin.strip(), begin + row["continuation"]]


def example(kind: str, row: dict[str, Any], delimiter: str) -> str:
    if kind == "multiple_choice":
        return f"{row['query']}{delimiter}{row['choices'][row['gold']]}\n\n"
    if kind == "schema":
        return f"{row['context_options'][row['gold']]}{delimiter}{row['continuation']}\n\n"
    return f"{row['context'].strip()}{delimiter}{row['continuation']}\n\n"


def same_at_start(sequences: list[list[int]]) -> int:
    length = 0
    while all(length < len(ids) and ids[length] == sequences[0][length] for ids in sequences):
        length += 1
    return length


@torch.inference_mode()
def plain_core(model: GPT2, tokenizer: Any, kind: str, rows: list[dict[str, Any]], shots: int, delimiter: str) -> Any:
    """Mean losses of the choices and verdict of every row, in nanochat's order."""
    rows = list(rows)
    random.Random(1337).shuffle(rows)
    found = []
    for number, row in enumerate(rows):
        others = [other for other in range(len(rows)) if other != number]
        drawn = random.Random(1234 + number).sample(others, shots)
        shown = "".join(example(kind, rows[other], delimiter) for other in drawn)
        texts = encode_ordinary(tokenizer, prompts(kind, row, delimiter, shown))
        ids = [[end_of_text_id(tokenizer), *text] for text in texts]
        if kind == "schema":
            suffix = same_at_start([sequence[::-1] for sequence in ids])
            starts = [len(sequence) - suffix for sequence in ids]
        elif kind == "multiple_choice":
            starts = [same_at_start(ids)] * len(ids)
        else:
            assert ids[1][: len(ids[0])] == ids[0]
            starts, ids = [len(ids[0])], ids[1:]
        losses, greedy = [], []
        for sequence, start in zip(ids, starts, strict=True):
            cut = max(0, len(sequence) - CONTEXT)
            tokens = torch.tensor([sequence[cut:]])
            logits = torch.nn.functional.linear(model.hidden(tokens)[0], model.wte.weight[: model.shape.vocab])
            scored = slice(start - cut - 1, len(sequence) - cut - 1)
            targets = tokens[0, 1:][scored]
            losses.append(torch.nn.functional.cross_entropy(logits[:-1][scored], targets).item())
            greedy.append(bool((logits[:-1][scored].argmax(1) == targets).all()))
        right = greedy[0] if kind == "greedy" else losses.index(min(losses)) == row["gold"]
        found.append((losses, right))
    return found


def check(model: GPT2, bpe: Path, kind: str, rows: list[dict[str, Any]], shots: int, delimiter: str) -> int:
    """Hold the scores of all rows against the plain ones; the number of rows that are longer than the context."""
    tokenizer = load_tokenizer(bpe)
    content = {"kind": kind, "data": ["x.jsonl"], "rule": "core", "shots": shots, "delimiter": delimiter}
    task = parse_description(content, "task")
    assert isinstance(task, Task)
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    scores = score_task(Scorer(model, tokenizer), task, "task", read_items(task, "task", [DataFile("x", raw)]))
    expected = plain_core(model, tokenizer, kind, rows, shots, delimiter)
    for own, (losses, right) in zip(scores.samples, expected, strict=True):
        if kind != "greedy":
            assert own["log_probs"] == pytest.approx([-loss for loss in losses], abs=1e-4)
        assert own["correct"] == right
    assert scores.result["accuracy"] == pytest.approx(sum(right for _, right in expected) / len(rows), abs=1e-6)
    truncated: int = scores.result["truncated"]
    return truncated


@pytest.mark.parametrize(
    ("file", "kind", "shots", "delimiter"),
    [
        ("commonsense_reasoning/piqa", "multiple_choice", 1, "\nAnswer: "),
        pytest.param("commonsense_reasoning/commonsense_qa", "multiple_choice", 2, " ", marks=pytest.mark.exhaustive),
        ("language_understanding/winograd_wsc", "schema", 0, " "),
        pytest.param("language_understanding/winogrande", "schema", 2, " ", marks=pytest.mark.exhaustive),
        pytest.param(
            "symbolic_problem_solving/simple_arithmetic_nospaces", "greedy", 5, " ", marks=pytest.mark.exhaustive
        ),
        ("world_knowledge/jeopardy_all", "greedy", 2, "\nAnswer: "),
    ],
)
@pytest.mark.slow
def test_rows_score_as_in_nanochat(
    real_data: Path, open_data: Path, tmp_path: Path, file: str, kind: str, shots: int, delimiter: str
) -> None:
    bpe, model = noisy_model(open_data, tmp_path, CONTEXT)
    rows = list(rows_of(real_data / f"eval/core/{file}.jsonl"))[:40]
    check(model, bpe, kind, rows, shots, delimiter)


def test_prompts_that_are_too_long_lose_their_start(open_data: Path, tmp_path: Path) -> None:
    bpe, model = noisy_model(open_data, tmp_path, CONTEXT)
    words = WORDS.split()
    draw = random.Random(0)

    def text(count: int) -> str:
        return " ".join(draw.choice(words) for _ in range(count))

    rows = [{"query": text(60), "choices": [text(3), text(5), text(4)], "gold": draw.randrange(3)} for _ in range(9)]
    assert check(model, bpe, "multiple_choice", rows, 2, " ") == 9
    assert check(model, bpe, "multiple_choice", rows, 0, " ") == 0
    schemas = [
        {"context_options": [text(9), text(8)], "continuation": text(4), "gold": draw.randrange(2)} for _ in range(9)
    ]
    assert check(model, bpe, "schema", schemas, 1, "\n") == 0


def planted(model: GPT2, bpe: Path, context: str, wrong: str) -> str:
    """A continuation that greedy decoding gives after a context, or `wrong` where that is no text of its own."""
    tokenizer = load_tokenizer(bpe)
    [ids] = encode_ordinary(tokenizer, [context.strip()])
    tokens = torch.tensor([[end_of_text_id(tokenizer), *ids][-CONTEXT:]])
    logits = torch.nn.functional.linear(model.hidden(tokens)[0, -1], model.wte.weight[: model.shape.vocab])
    text = tokenizer.decode([int(logits.argmax())])
    [again] = encode_ordinary(tokenizer, [context.strip() + text])
    return text[1:] if text.startswith(" ") and text.strip() and again[: len(ids)] == ids else wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squad", "coqa"])
def test_squad_and_coqa_are_greedy_matches_as_in_nanochat(open_data: Path, tmp_path: Path, name: str) -> None:
    """Rows in llm-foundry's form, some with the answer that the model gives; the passages exceed the context."""
    bpe, model = noisy_model(open_data, tmp_path, CONTEXT)
    _, task = read_description(f"core/{name}")
    assert isinstance(task, Task)
    assert (task.kind, task.rule, task.random, task.shots) == ("greedy", "core", 0.0, 10 if name == "squad" else 0)
    draw, words, rows = random.Random(1), WORDS.split(), []
    for number in range(24):
        story, question = (" ".join(draw.choices(words, k=count)) for count in (8 + number * 6, 6))
        head = f"{story}\n" if name == "squad" else f"Story: {story}\n\nPreceding questions:\n\nFinal question:\n"
        context = f"{head}Question: {question}?\nAnswer: "
        answer = " ".join(draw.choices(words, k=draw.randrange(1, 4)))
        right = planted(model, bpe, context, answer)
        rows.append({"context": context, "continuation": right if number % 2 else answer})
    truncated = check(model, bpe, task.kind, rows, task.shots, task.delimiter)
    assert truncated == len(rows) if name == "squad" else 0 < truncated < len(rows)
    if name == "coqa":  # the answers of the examples change the prompts of squad
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        items = read_items(task, name, [DataFile("x", raw)])
        tokenizer = load_tokenizer(bpe)
        assert 0 < score_task(Scorer(model, tokenizer), task, name, items).result["accuracy"] < 1
        # lm-evaluation-harness: log p of the continuation, all of whose tokens are the most likely ones.
        harness = task.model_copy(update={"rule": "lm-eval"})
        found = score_task(Scorer(model, tokenizer), harness, name, items).samples
        for row, own in zip(rows, found, strict=True):
            log_prob, greedy = likelihood(model, tokenizer, row)
            assert (own["log_probs"], own["correct"]) == (pytest.approx([log_prob], abs=1e-4), greedy)


@torch.inference_mode()
def likelihood(model: GPT2, tokenizer: Any, row: dict[str, str]) -> tuple[float, bool]:
    """`loglikelihood` of lm-evaluation-harness: spaces at the end of the context go to the continuation."""
    context, continuation = row["context"], f" {row['continuation']}"
    spaces = len(context) - len(context.rstrip())
    context, continuation = context[:-spaces] if spaces else context, context[len(context) - spaces :] + continuation
    whole, before = encode_ordinary(tokenizer, [context + continuation, context])
    target = whole[len(before) :]
    tokens = torch.tensor([(whole[: len(before)] + target)[-(CONTEXT + 1) :]])
    logits = torch.nn.functional.linear(model.hidden(tokens[:, :-1])[0], model.wte.weight[: model.shape.vocab])
    scored, right = logits[-len(target) :].log_softmax(1), tokens[0, -len(target) :]
    return float(scored.gather(1, right[:, None]).sum()), bool((scored.argmax(1) == right).all())


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
