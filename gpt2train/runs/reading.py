"""Discovery and reading of run folders, with a list of those that cannot be read; does not import torch.

Only the settings must exist: a run may have just begun, have stopped, never been evaluated, or been trained without a
flow.
"""

import contextlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt2train.config import CONFIG_FILE, RunConfig
from gpt2train.convert.card_scores import cloze_set
from gpt2train.errors import RunError, UserError
from gpt2train.model.families import parameter_count
from gpt2train.monitoring.metrics import FILE, TASK_PREFIX, kwh, read_metrics, unreadable_lines
from gpt2train.monitoring.run_record import RunRecord, read_record, token_fingerprint
from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.settings import build, flatten, read_toml
from gpt2train.store.manifest import MANIFEST
from gpt2train.store.run_folder import FOLDER, RECORD, checkpoint_step, last_step, list_checkpoints

MAX_DEPTH = 4  # folder levels below the given one: folder of outputs, output, runs/, run, and one spare
SIGNS = (RECORD, FILE, MANIFEST, FOLDER, "logs")  # a run folder has config.toml and at least one of these
MEAN_ROWS = 10  # number of last steps whose mean training loss is shown; the loss of one step is noisy


@dataclass(frozen=True)
class Run:
    """Contents of a run folder.

    Attributes:
        name: name of the folder, with parent folders if two runs have the same name.
        folder: path of the folder.
        state: `running`, `finished`, `stopped` or `not begun`.
        step: last finished step.
        steps: number of steps of the training.
        data: fingerprint of the training tokens, several joined by `+`; None if unknown.
        tokens: tokens trained on so far.
        data_tokens: tokens of the training data.
        parameters: parameters of the model.
        layout: parallel layout of the last start.
        loss: mean training loss of the last ten steps, nats per token.
        valid_loss: last validation loss, nats per token.
        best_valid_loss: lowest validation loss, nats per token.
        bits_per_byte: lowest bits per byte of the validation text.
        cloze_set: name of the passages whose last words were scored, `LAMBADA` or one with the hash of the file.
        cloze_accuracy: accuracy on them by the headline definition.
        cloze_perplexity: perplexity on them by the headline definition.
        wikitext_perplexity: WikiText perplexity per word of the original text.
        task_scores: last score of each column of `validation.tasks`, by `<task>_<metric>`.
        hours: time of all steps; a repeated step counts each time.
        repeated_hours: part of `hours` spent on steps that were repeated.
        tokens_per_second: median over the steps.
        gpu_kwh: energy that the GPUs took, kWh; None if it was not measured.
        cpu_kwh: energy that the machines' CPUs took, kWh; None if it was not measured.
        gpu_utilization: mean share of the time in which the GPUs computed, 0 to 1; None if it was not measured.
        seconds_left: estimated time until the last step of a run that is running; None of others.
        started: time of the first start, ISO 8601.
        record: contents of `run.json`.
        settings: flat settings, by dotted name.
        rows: rows of metrics.jsonl.
        evaluation: results in eval/, by name of the file.
    """

    name: str
    folder: Path
    state: str
    step: int
    steps: int
    data: str | None
    tokens: int
    data_tokens: int | None
    parameters: int
    layout: str | None
    loss: float | None
    valid_loss: float | None
    best_valid_loss: float | None
    bits_per_byte: float | None
    cloze_set: str | None
    cloze_accuracy: float | None
    cloze_perplexity: float | None
    wikitext_perplexity: float | None
    task_scores: dict[str, float]
    hours: float
    repeated_hours: float
    tokens_per_second: float | None
    gpu_kwh: float | None
    cpu_kwh: float | None
    gpu_utilization: float | None
    seconds_left: float | None
    started: str | None
    record: RunRecord
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class UnreadableRun:
    """Run folder that cannot be read, with the reason."""

    folder: Path
    reason: str


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[UnreadableRun]]:
    """Read every run at or below the given folders.

    Returns:
        The runs, each once, sorted by name, and the run folders that are partly or wholly unreadable.

    Raises:
        UserError: a folder does not exist, or there is no run below any of them.
    """
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in find_runs(path)))
    if not folders:
        where = ", ".join(map(str, paths))
        raise UserError(f"no run below {where}; give an output folder, its runs/, or the folder of a run")
    runs: list[Run] = []
    unreadable: list[UnreadableRun] = []
    for folder, name in zip(folders, _names(folders), strict=True):
        try:
            runs.append(read_run(folder, name))
            if problem := unreadable_lines(folder):
                unreadable.append(UnreadableRun(folder, problem))
        except (UserError, RunError) as error:
            unreadable.append(UnreadableRun(folder, str(error)))
        except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
            unreadable.append(UnreadableRun(folder, f"{folder} has unknown contents ({type(error).__name__}: {error})"))
    return sorted(runs, key=lambda run: run.name), unreadable


def find_runs(root: Path) -> Iterator[Path]:
    """Find the run folders at or below a folder; the folders inside a run are not searched.

    Raises:
        UserError: the folder does not exist.
        OSError: no run was found, and a folder cannot be read.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give an output folder, its runs/, or the folder of a run")
    failures: list[OSError] = []
    found = False
    for path, subfolders, files in os.walk(root, onerror=failures.append):
        folder = Path(path)
        names = {*subfolders, *files}
        if RECORD in names or (CONFIG_FILE in names and not names.isdisjoint(SIGNS)):
            subfolders.clear()
            found = True
            yield folder
        elif len(folder.relative_to(root).parts) >= MAX_DEPTH:
            subfolders.clear()
        else:
            subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "_")))
    if failures and not found:
        raise failures[0]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read one run folder; `name` is by default the name of the folder.

    Raises:
        UserError: the settings are missing or invalid.
        RunError: a file is damaged.
        ValueError: a file does not have the contents that a run writes; also TypeError, KeyError and others.
    """
    plain = read_toml(folder / CONFIG_FILE)
    config = build(RunConfig, plain, source=str(folder / CONFIG_FILE))
    rows = read_metrics(folder)
    record = read_record(folder) or RunRecord()
    last: dict[str, Any] = rows[-1] if rows else {}
    losses, valid = _numbers(rows[-MEAN_ROWS:], "loss"), _numbers(rows, "valid_loss")
    evaluation = dict(_evaluation(folder))
    lambada = evaluation.get("lambada", {})
    headline = lambada.get("definitions", {}).get(lambada.get("headline"), {})
    speeds = _numbers(rows, "tokens_per_second")
    step = int(last.get("step", 0))
    start = record.starts[-1] if record.starts else None
    state = _state(folder, step, last_step(folder, config.steps))
    return Run(
        name=name or folder.name,
        folder=folder,
        state=state,
        step=step,
        steps=config.steps,
        data=_data(record, config),
        tokens=int(last.get("tokens") or 0),
        data_tokens=sum(corpus.tokens for corpus in record.data) or None,
        parameters=parameter_count(config.shape),
        layout=start.layout if start else None,
        loss=sum(losses) / len(losses) if losses else None,
        valid_loss=valid[-1] if valid else None,
        best_valid_loss=min(valid, default=None),
        bits_per_byte=min(_numbers(rows, "valid_bits_per_byte"), default=None),
        cloze_set=cloze_set(lambada) if headline else None,
        cloze_accuracy=headline.get("accuracy"),
        cloze_perplexity=headline.get("perplexity"),
        wikitext_perplexity=evaluation.get("wikitext", {}).get("adjusted_perplexity"),
        task_scores=_task_scores(rows),
        hours=(sum(_numbers(rows, "seconds")) + record.repeated("seconds")) / 3600,
        repeated_hours=record.repeated("seconds") / 3600,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        gpu_kwh=kwh(rows, "gpu_joules", record.repeated("joules")),
        cpu_kwh=kwh(rows, "cpu_joules", record.repeated("cpu_joules")),
        gpu_utilization=statistics.fmean(used) if (used := _numbers(rows, "gpu_utilization")) else None,
        seconds_left=TimeLeft(rows).seconds(config.steps) if state == "running" else None,
        started=record.starts[0].at if record.starts else None,
        record=record,
        settings=flatten(plain),
        rows=rows,
        evaluation=evaluation,
    )


def is_locked(run: Path) -> bool:
    """Return True if a job has locked the run folder; False if the system has no file locks.

    The probe takes a shared lock for a moment; a job that starts at the same time retries for a second.
    """
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # missing on Windows

        with (run / ".lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _state(folder: Path, step: int, steps: int) -> str:
    if is_locked(folder):
        return "running"
    if any(checkpoint_step(checkpoint) == steps for checkpoint in list_checkpoints(folder)[-1:]):
        return "finished"
    return "stopped" if step else "not begun"


def _data(record: RunRecord, config: RunConfig) -> str | None:
    """Return the fingerprint of the training tokens by the flows, else the identity that checkpoints use."""
    names: list[str | None] = [corpus.fingerprint or corpus.identity for corpus in record.data]
    # Without them: before the first step, or a run of a release that wrote no record.
    if not names and config.data.split is None:
        names = [token_fingerprint(corpus.prefix) for corpus in config.data.corpora]
    return "+".join(filter(None, names)) or None


def _evaluation(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted((folder / "eval").glob("[!_]*.json")):
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RunError(f"{path} is not a result of an evaluation; remove it")
        yield path.stem, found


def _task_scores(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    columns = dict.fromkeys(key for row in rows for key in row if key.startswith(TASK_PREFIX))
    last = {column.removeprefix(TASK_PREFIX): _numbers(rows, column)[-1:] for column in columns}
    return {name: value for name, values in last.items() for value in values}


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest unique end of each path."""
    names = [folder.name for folder in folders]
    deepest = max(len(folder.parts) for folder in folders)
    for parts in range(2, deepest + 1):
        ambiguous = {name for name in names if names.count(name) > 1}
        if not ambiguous:
            break
        ends = ["/".join(folder.parts[-parts:]) for folder in folders]
        names = [end if name in ambiguous else name for name, end in zip(names, ends, strict=True)]
    # The folder `runs` is in every path of the flows and carries no information.
    short = [name.replace("/runs/", "/") for name in names]
    return short if len(set(short)) == len(short) else names


def _numbers(rows: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]
