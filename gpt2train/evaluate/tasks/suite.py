"""Scores of a task or of a suite of tasks, from the data files to the results; does not import torch at start-up."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.files import DATA_HASH_KEY, data_fields
from gpt2train.evaluate.metrics import Result, significant
from gpt2train.evaluate.registry import RESERVED
from gpt2train.evaluate.tasks.bootstrap import interval
from gpt2train.evaluate.tasks.description import Suite, Task, description_hash, read_description
from gpt2train.evaluate.tasks.fetch import Fetched, check_fetched, fetch_data
from gpt2train.evaluate.tasks.items import Item, find_data, read_items
from gpt2train.evaluate.tasks.scores import TaskScores, centred, score_task
from gpt2train.store.counts import count_of

Samples = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Part:
    """Task with its items, and the fields of a result that identify its data."""

    name: str
    task: Task
    items: list[Item]
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Work:
    """Task or suite that was asked for, with its data."""

    name: str  # name for tables and result files
    description: Task | Suite
    parts: list[Part]  # tasks that are scored; one, but for a suite
    missing: tuple[str, ...] = ()  # tasks of a suite without data

    @property
    def file(self) -> str:
        """Name of the result file, without suffix."""
        return self.name.replace("/", "-")

    @property
    def facts(self) -> dict[str, str]:
        """Fields of a result that identify the data."""
        if isinstance(self.description, Task):
            return dict(self.parts[0].facts)
        hashes = "".join(part.facts[DATA_HASH_KEY] for part in self.parts).encode()
        return data_fields(f"{len(self.parts)} tasks", hashes)

    def identity(self, limit: int | None = None) -> str:
        """Return the hash of all that the scores depend on besides the model; `limit` is the items of each task."""
        facts = [self.name, description_hash(self.description), self.facts, self.missing, limit]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_works(
    names: Sequence[str],
    folder: Path,
    partial: bool = False,
    limit: int | None = None,
    taken: Sequence[str] = (),
    fetched: Fetched | None = None,
) -> list[Work]:
    """Read several tasks and suites, of which each has a result file of its own.

    `taken` are the names of result files of other evaluations; the other arguments are those of `read_work`.

    Raises:
        UserError: as `read_work`, or two tasks have the same name, or one has the name of another result.
    """
    others = (*RESERVED, *taken)
    works: dict[str, Work] = {}
    for name in names:
        work = read_work(name, folder, partial, limit, fetched)
        if work.file in others:
            raise UserError(f"task {work.name!r}: {', '.join(others)} have another meaning; rename the file")
        if work.file in works:
            raise UserError(f"task {work.name} is given twice; give it once, or rename the file of one")
        works[work.file] = work
    return list(works.values())


def read_work(
    name: str, folder: Path, partial: bool = False, limit: int | None = None, fetched: Fetched | None = None
) -> Work:
    """Read a task or suite and its data.

    Args:
        name: as `read_description`.
        folder: folder with the data, or the data file of a task.
        partial: leave out the tasks of a suite that have no data.
        limit: number of items of each task that will be scored.
        fetched: fetch data that are missing from the addresses of the descriptions, and call this with a line on each
            file; None: fetch nothing.

    Raises:
        UserError: there is no such task, its description or data are malformed or missing, or there are too few items
            for its examples.
    """
    label, description = read_description(name)
    if fetched is not None:
        tasks = {label: description} if isinstance(description, Task) else description.tasks
        for part, task in tasks.items():
            if task.url or not partial:
                fetch_data(task, part, folder, fetched)
    if isinstance(description, Task):
        return Work(label, description, [_part(label, description, folder, limit)])
    if folder.is_file():
        raise UserError(f"--data {folder}: the suite {label} needs the folder of the data files of its tasks")
    parts, missing = [], []
    for part, task in description.tasks.items():
        try:
            find_data(task, part, folder)
        except UserError as error:
            if not partial:
                raise UserError(f"{error}, or score the other tasks with --partial") from error
            missing.append(part)
            continue
        parts.append(_part(f"{label}/{part}", task, folder, limit))
    if not parts:
        raise UserError(f"{folder} has data of no task of {label}; give another --data")
    return Work(label, description, parts, tuple(missing))


def _part(name: str, task: Task, folder: Path, limit: int | None) -> Part:
    data = find_data(task, name, folder)
    check_fetched(folder, data)
    items = read_items(task, name, data)
    if limit is not None and task.rule == "core" and task.shots >= limit:
        raise UserError(f"task {name}: its {task.shots} shots are drawn from the items of --limit {limit}; give more")
    raw, *more = (part for file in data for part in (file.content, file.labels) if part is not None)
    if more:
        raw = b"".join(content if content.endswith(b"\n") else content + b"\n" for content in (raw, *more))
    label = Path(data[0].name).name if len(data) == 1 else f"{len(data)} files"
    return Part(name, task, items, data_fields(label, raw))


def score_work(scorer: Scorer, work: Work, limit: int | None = None) -> tuple[Result, Samples]:
    """Score a model on a task or on the tasks of a suite; `limit` is the number of items of each task to score.

    Returns:
        JSON-serialisable result, and the scored items of each task.
    """
    return joined(work, [score_task(scorer, part.task, part.name, part.items, limit) for part in work.parts], limit)


def joined(work: Work, parts: Sequence[TaskScores], limit: int | None = None) -> tuple[Result, Samples]:
    """Join the scores of each task of a suite to its result and items; those of a single task are its own."""
    scored = list(zip(work.parts, parts, strict=True))
    results = {part.name: {**part.facts, **found.result} for part, found in scored}
    samples = {part.name: found.samples for part, found in scored}
    limited = any(found.result["items"] < len(part.items) for part, found in scored)
    notes = [f"{work.name}: scored on {count_of(limit or 0, 'item')} of each task, not on all"] if limited else []
    if isinstance(work.description, Task):
        [result] = results.values()
        return {**result, "notes": [*notes, *result["notes"]]}, samples
    values = [result["centred"] for result in results.values()]
    drawn = sum(centred(found.resampled, found.result["random"]) for found in parts)
    notes += [note for result in results.values() for note in result["notes"]]
    if work.missing:
        notes.append(
            f"{work.name}: mean of {len(values)} tasks, without {', '.join(work.missing)}: no {work.name} score"
        )
    result = {
        **work.facts,
        "suite": work.name,
        "items": sum(found["items"] for found in results.values()),
        "centred": significant(sum(values) / len(values)),
        "centred_interval": interval(drawn / len(values)),
        "missing": list(work.missing),
        "published": work.description.published,
        "tasks": results,
        "notes": notes,
    }
    return result, samples
