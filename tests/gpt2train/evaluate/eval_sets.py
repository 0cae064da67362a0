"""Evaluation sets of the whole test data in the fields that lm-evaluation-harness reads, a file for each task."""

import json
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# Where lm-evaluation-harness has the task, below its folder of tasks.
HARNESS = {
    "blimp": "blimp/adjunct_island.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "copa": "super_glue/copa/default.yaml",
    "xcopa_zh": "xcopa/default_zh.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "commonsense_qa": "commonsense_qa/default.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
}
# A task of the harness on a file of rows, in place of the sets that it would fetch.
SPLIT = """
include: {file}
task: {name}_local
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {{test: {data}}}}}
training_split: null
validation_split: null
test_split: test
fewshot_split: test
num_fewshot: {shots}
"""
MAX_CHARACTERS = 600  # the harness takes no continuation that is longer than the context of a small model


def rows_of(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _blimp(folder: Path) -> Iterator[Row]:
    with zipfile.ZipFile(folder / "blimp/BLiMP.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("data/") and name.endswith(".jsonl"))
        pairs = [archive.read(name).decode().splitlines() for name in names]
    for row in zip(*pairs, strict=True):  # one of each phenomenon after the other
        yield from map(json.loads, row)


def _hellaswag(folder: Path) -> Iterator[Row]:
    for row in rows_of(folder / "hellaswag/hellaswag_val.jsonl"):
        first, _, second = row["ctx"].rpartition(". ")
        parts = {"ctx_a": f"{first}.", "ctx_b": second} if first else {"ctx_a": row["ctx"], "ctx_b": ""}
        yield row | parts | {"endings": [f"{ending} [step] and  on [title] so" for ending in row["endings"]]}


def _piqa(folder: Path) -> Iterator[Row]:
    labels = (folder / "original_fields/piqa/dev-labels.lst").read_text().split()
    for row, label in zip(rows_of(folder / "original_fields/piqa/dev.jsonl"), labels, strict=True):
        if len(row["sol1"] + row["sol2"]) < MAX_CHARACTERS:
            yield row | {"label": int(label)}


def _science(name: str, field: str) -> Callable[[Path], Iterator[Row]]:
    def rows(folder: Path) -> Iterator[Row]:
        for row in rows_of(folder / f"core/{name}.jsonl"):
            letters = list("ABCDE"[: len(row["choices"])])
            choices = {"text": row["choices"], "label": letters}
            yield {
                field: row["query"].removeprefix("Question: "),
                "choices": choices,
                "answerKey": letters[row["gold"]],
            }

    return rows


def _winogrande(folder: Path) -> Iterator[Row]:
    for row in rows_of(folder / "core/language_understanding/winogrande.jsonl"):
        both = zip(*row["context_options"], strict=False)
        same = "".join(a for a, _ in takewhile(lambda letters: letters[0] == letters[1], both)).rpartition(" ")[0] + " "
        names = [option.removeprefix(same) for option in row["context_options"]]
        sentence = f"{same}_ {row['continuation']}"
        yield {"sentence": sentence, "option1": names[0], "option2": names[1], "answer": str(row["gold"] + 1)}


def _boolq(folder: Path) -> Iterator[Row]:
    for row in rows_of(folder / "core/reading_comprehension/boolq.jsonl"):
        passage, _, question = row["query"].removeprefix("Passage: ").rpartition("\nQuestion: ")
        label = int(row["choices"][row["gold"]] == "yes")
        yield {"passage": passage, "question": question.strip().rstrip("?"), "label": label}


def _copa(folder: Path) -> Iterator[Row]:
    for row in rows_of(folder / "core/commonsense_reasoning/copa.jsonl"):
        premise, _, word = row["query"].rpartition(" ")
        choices = [choice[0].upper() + choice[1:] for choice in row["choices"]]
        kind = "effect" if word == "therefore" else "cause"
        yield {"premise": f"{premise.rstrip(',')}.", "choice1": choices[0], "choice2": choices[1],
               "question": kind, "label": row["gold"]}  # fmt: skip


def _commonsense(folder: Path) -> Iterator[Row]:
    for row in rows_of(folder / "core/commonsense_reasoning/commonsense_qa.jsonl"):
        question, _, rest = row["query"].removeprefix("Question: ").partition("\nChoices:\n")
        texts = [line.partition(". ")[2] for line in rest.splitlines()[:4]]
        choices = {"text": [*texts, "none of them"], "label": list("ABCDE")}
        yield {"question": question, "choices": choices, "answerKey": "ABCD"[row["gold"]]}


SETS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "blimp": _blimp,
    "hellaswag": _hellaswag,
    "piqa": _piqa,
    "arc_easy": _science("world_knowledge/arc_easy", "question"),
    "arc_challenge": _science("world_knowledge/arc_challenge", "question"),
    "openbookqa": _science("commonsense_reasoning/openbook_qa", "question_stem"),
    "winogrande": _winogrande,
    "copa": _copa,
    "xcopa_zh": lambda folder: rows_of(folder / "zh/xcopa/test.zh.jsonl"),
    "boolq": _boolq,
    "commonsense_qa": _commonsense,
    "lambada_openai": lambda folder: rows_of(folder.parent / "lambada/lambada_test.jsonl"),
}


def write_set(name: str, folder: Path, count: int, target: Path) -> Path:
    """Write the first rows of a set.

    Args:
        name: name of the task.
        folder: folder `eval` of the whole test data.
        count: number of rows.
        target: folder of the new file.
    """
    file = target / f"{name}.jsonl"
    rows = islice(SETS[name](folder), count)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file
