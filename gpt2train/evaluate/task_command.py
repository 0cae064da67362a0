"""Scores of models on tasks for `gpt2train evaluate TASK…`: data first, then each model once."""

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.command_line import TokenizerFolder
from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.files import DATA_HASH_KEY, ONE_MODEL, find_models, write_result
from gpt2train.evaluate.metrics import Result
from gpt2train.evaluate.registry import BUILT_IN
from gpt2train.evaluate.scoring_request import BATCH_TOKENS
from gpt2train.evaluate.tasks.suite import read_works, score_work
from gpt2train.evaluate.tasks.table import definitions, task_lines
from gpt2train.evaluate.torchrun import group, is_rank0, print_once, rank0_progress
from gpt2train.inference.settings import ServingLayout
from gpt2train.store.files import write_atomic
from gpt2train.store.hub import with_commit

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Layout = Annotated[ServingLayout, Parameter(name="*")]
ONE_PROCESS = ServingLayout()


@dataclass(frozen=True)
class TaskOptions:
    """Options of the command."""

    data: Path | None = None
    """Folder of the tasks' data files, or the data file of one task."""
    partial: Annotated[bool, Parameter(negative=())] = False
    """Leave out the tasks of a suite that have no data."""
    fetch: Annotated[bool, Parameter(negative=())] = False
    """Fetch missing data into --data from the addresses of the descriptions; nothing is fetched without it."""
    limit: Positive | None = None
    """Score this many items of each task."""
    log_samples: Annotated[bool, Parameter(negative=())] = False
    """Write log-probabilities and answer of every item to TASK.samples.jsonl beside the result, or of all models and
    tasks beside --output."""
    output: Path | None = None
    """Result file of all models and tasks. By default each model has its own: MODEL/eval/TASK.json,
    eval/ORG--NAME/TASK.json for one of the hub, or RUN/scores/step-…/TASK.json."""
    tokenizer: TokenizerFolder = None
    """Tokenizer folder of a checkpoint; by default `tokenizer` next to the training's tokens."""
    batch_tokens: Positive = BATCH_TOKENS
    """Tokens per batch, including padding; bounds the memory."""
    layout: Layout = ONE_PROCESS
    device: Device = "auto"
    """auto uses a GPU if there is one."""


def score_tasks(names: Sequence[str], models: Sequence[Path], options: TaskOptions) -> None:
    """Score models on tasks, print a table and write the results.

    Raises:
        UserError: a task, its data, a model or the output is not usable.
        RunError: a checkpoint is damaged, or the outputs of a model are not finite.
    """
    if not models or options.data is None:
        raise UserError(f"evaluate {names[0]}: give {'--data' if models else '--model'}")
    if options.fetch and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--fetch: fetch the data in one process first, without torchrun")
    fetched = functools.partial(print, flush=True) if options.fetch else None
    works = read_works(names, options.data, options.partial, options.limit, tuple(BUILT_IN), fetched)
    sources = find_models(models, options.output, [work.file for work in works], options.layout, options.tokenizer)
    from gpt2train.evaluate.eval_model import open_eval_model

    if options.layout.processes > 1 and group():
        raise UserError(ONE_MODEL)
    results: dict[str, dict[str, Result]] = {work.name: {} for work in works}
    rows: list[dict[str, Any]] = []
    written: dict[str, None] = {}
    try:
        for path, source in zip(models, sources, strict=True):
            with open_eval_model(source, options.layout, options.device) as subject:
                for work in works:
                    with rank0_progress(work.name) as report:
                        scorer = Scorer(subject.model, subject.tokenizer, options.batch_tokens, report, group())
                        result, samples = score_work(scorer, work, options.limit)
                    found = results[work.name][str(path)] = {"model": with_commit(path), **result}
                    file, model = source.scores / f"{work.file}.json", {}
                    if options.output is None:
                        rows = []
                    else:
                        file, found, model = options.output, _joined(results), {"model": str(path)}
                    rows += [{**model, "task": name, **row} for name, items in samples.items() for row in items]
                    # Now, so that no failure of a later task or model loses it.
                    written |= dict.fromkeys(_write(file, found, rows if options.log_samples else None))
    finally:
        done = list(results[works[-1].name])  # models that are scored on all tasks
        scored = [{model: found[model] for model in done} for found in results.values()]
        for line in [*(task_lines(scored, definitions(works)) if done else ()), *written]:
            print_once(line)


def _write(file: Path, result: Result, rows: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    """Write a result on rank 0, and the rows of its items beside it; yield a line for each file."""
    if is_rank0():
        write_result(file, result)
    yield f"scores: {file}"
    if rows is not None:
        beside = file.with_suffix(".samples.jsonl")
        if is_rank0():
            write_atomic(beside, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        yield f"samples: {beside}"


def _joined(results: Mapping[str, Mapping[str, Result]]) -> Result:
    """Return one result of all models and tasks; that of one model on one task is as in its own file."""
    rows = [result for models in results.values() for result in models.values()]
    if len(rows) == 1:
        return rows[0]
    return {DATA_HASH_KEY: {row.get("task", row.get("suite")): row[DATA_HASH_KEY] for row in rows}, "results": rows}
