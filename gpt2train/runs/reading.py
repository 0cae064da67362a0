"""What run folders hold, as plain values: found, read, and those that cannot be read named. No torch.

Nothing is trusted to be there but the settings: a run that has just begun, that stopped, that was never evaluated or
that was trained without a flow is a run like any other.
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
from gpt2train.errors import RunError, UserError
from gpt2train.metrics import FILE, parameter_count, read_metrics
from gpt2train.runs.record import MANIFEST, RECORD, RunRecord, read_record, token_fingerprint
from gpt2train.settings import build, read_toml

DEPTH = 4  # folders below the given one: a folder of outputs, an output, runs/, the run, and one to spare
SIGNS = (RECORD, FILE, MANIFEST, "checkpoints", "logs")  # one of them beside config.toml makes a run folder
LAST_ROWS = 10  # of the training loss that is shown: one step's alone says little


@dataclass(frozen=True)
class Run:
    """A run, as far as its folder tells.

    Attributes:
        name: of the folder; with what is above it where two are of one name.
        folder: where it lies.
        state: `running`, `finished`, `stopped` or `not begun`.
        step, steps: done, and to do.
        data: fingerprint of the tokens, several joined by `+`; None where nothing tells it.
        tokens: trained on so far.
        data_tokens: in the training data.
        parameters: of the model.
        layout: of the last start.
        loss: mean of the last ten steps.
        valid_loss, best_valid_loss: nats per token.
        lambada_accuracy, lambada_perplexity: by the headline definition.
        wikitext_perplexity: per word of the original text.
        hours: that its steps took, those done again counted each time.
        repeated_hours: of these, spent on steps that were done again.
        tokens_per_second: median over the steps.
        started: of the first start, ISO 8601.
        record: what `run.json` holds.
        settings: flat, by dotted name.
        rows: of metrics.jsonl.
        evaluation: the results in eval/, by name of the file.
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
    lambada_accuracy: float | None
    lambada_perplexity: float | None
    wikitext_perplexity: float | None
    hours: float
    repeated_hours: float
    tokens_per_second: float | None
    started: str | None
    record: RunRecord
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Broken:
    """A run folder that cannot be read, and why."""

    folder: Path
    reason: str


def read_runs(places: Sequence[Path]) -> tuple[list[Run], list[Broken]]:
    """Every run at or below some folders, each once, by name.

    Raises:
        UserError: a folder is not there, or there is no run below any.
    """
    folders = list(dict.fromkeys(folder.resolve() for place in places for folder in find_runs(place)))
    if not folders:
        where = ", ".join(map(str, places))
        raise UserError(f"no run below {where}; give an output folder, its runs/, or the folder of a run")
    runs: list[Run] = []
    broken: list[Broken] = []
    for folder, name in zip(folders, _names(folders), strict=True):
        try:
            runs.append(read_run(folder, name))
        except (UserError, RunError) as error:
            broken.append(Broken(folder, str(error)))
        except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
            broken.append(Broken(folder, f"{folder} holds what no run writes ({type(error).__name__}: {error})"))
    return sorted(runs, key=lambda run: run.name), broken


def find_runs(place: Path) -> Iterator[Path]:
    """The run folders at or below a folder; what is within a run is not looked at.

    Raises:
        UserError: there is no such folder.
    """
    if not place.is_dir():
        raise UserError(f"{place} is no folder; give an output folder, its runs/, or the folder of a run")
    for path, below, files in os.walk(place):
        here = Path(path)
        if _is_run({*below, *files}):
            below.clear()
            yield here
        elif len(here.relative_to(place).parts) >= DEPTH:
            below.clear()
        else:
            below[:] = sorted(name for name in below if not name.startswith((".", "_")))


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read one run folder.

    Raises:
        UserError, RunError, ValueError, TypeError, KeyError: a file is not what the run wrote.
    """
    plain = read_toml(folder / CONFIG_FILE)
    config = build(RunConfig, plain, source=str(folder / CONFIG_FILE))
    rows = read_metrics(folder)
    if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
        raise RunError(f"{folder / FILE} has a row without a step")
    record = read_record(folder) or RunRecord()
    last: dict[str, Any] = rows[-1] if rows else {}
    valid = _numbers(rows, "valid_loss")
    evaluation = dict(_evaluation(folder))
    lambada = evaluation.get("lambada", {})
    headline = lambada.get("definitions", {}).get(lambada.get("headline"), {})
    speeds = _numbers(rows, "tokens_per_second")
    step = int(last.get("step", 0))
    start = record.starts[-1] if record.starts else None
    return Run(
        name=name or folder.name,
        folder=folder,
        state=_state(folder, step, config.steps),
        step=step,
        steps=config.steps,
        data=_data(record, config),
        tokens=int(last.get("tokens") or 0),
        data_tokens=sum(corpus.tokens for corpus in record.data) or None,
        parameters=parameter_count(config.shape),
        layout=start.layout if start else None,
        loss=_mean(_numbers(rows[-LAST_ROWS:], "loss")),
        valid_loss=valid[-1] if valid else None,
        best_valid_loss=min(valid, default=None),
        lambada_accuracy=headline.get("accuracy"),
        lambada_perplexity=headline.get("perplexity"),
        wikitext_perplexity=evaluation.get("wikitext", {}).get("adjusted_perplexity"),
        hours=(sum(_numbers(rows, "seconds")) + record.repeated_seconds) / 3600,
        repeated_hours=record.repeated_seconds / 3600,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        started=record.starts[0].at if record.starts else None,
        record=record,
        settings=flat(plain),
        rows=rows,
        evaluation=evaluation,
    )


def flat(settings: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def is_held(run: Path) -> bool:
    """Whether a job holds the run folder, looked at without taking it: a job that starts just now has a second's
    patience. Where files cannot be locked it is not known, and so False."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # not on every system

        with (run / ".lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _is_run(names: set[str]) -> bool:
    return RECORD in names or (CONFIG_FILE in names and not names.isdisjoint(SIGNS))


def _state(folder: Path, step: int, steps: int) -> str:
    if is_held(folder):
        return "running"
    latest = folder / "checkpoints" / "latest"
    if latest.is_file() and latest.read_text(encoding="utf-8").strip() == f"step-{steps:08d}":
        return "finished"
    return "stopped" if step else "not begun"


def _data(record: RunRecord, config: RunConfig) -> str | None:
    """What names the training tokens: what the flows know them by, else what a checkpoint does."""
    names = [corpus.fingerprint or corpus.identity for corpus in record.data]
    if not names:  # begun, but not at its first step; or of a release that wrote no record
        found = [token_fingerprint(corpus.prefix) for corpus in config.data.corpora]
        names = [name for name in found if name]
    return "+".join(names) or None


def _evaluation(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted((folder / "eval").glob("[!_]*.json")):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise RunError(f"{path} is no result of an evaluation")
        yield path.stem, found


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest end of each path that no other has."""
    names = [folder.name for folder in folders]
    deepest = max(len(folder.parts) for folder in folders)
    for parts in range(2, deepest + 1):
        twice = {name for name in names if names.count(name) > 1}
        if not twice:
            break
        ends = ["/".join(folder.parts[-parts:]) for folder in folders]
        names = [end if name in twice else name for name, end in zip(names, ends, strict=True)]
    # `runs` says nothing, and stands in every path of the flows.
    short = [name.replace("/runs/", "/") for name in names]
    return short if len(set(short)) == len(short) else names


def _numbers(rows: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
