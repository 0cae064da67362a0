"""`run.json`: on what a run was begun, and every start of it. No torch.

    {"format": 1, "preset": "345m", "inputs": {"tokenize": "…"}, "launch": {…}, "parameters": 354823168,
     "data": [{"prefix": …, "identity": …, "fingerprint": …, "tokens": …, "share": 1.0}],
     "starts": [{"at": "2026-01-31T12:00:00+00:00", "host": …, "world": 8, "layout": …, "step": 0, …}]}

The flow writes its part before the job starts, the first rank adds a start before its first step. Each time the file is
replaced whole, so it can be read at any moment, in the middle of the run and after a `kill -9` too. It holds clocks and
names of machines: no fingerprint, hash or checkpoint of a run depends on it.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError

import gpt2train
from gpt2train.config import RunConfig
from gpt2train.errors import RunError
from gpt2train.files import write_whole
from gpt2train.metrics import parameter_count, read_metrics
from gpt2train.settings import Settings

RECORD = "run.json"
FORMAT = 1
MANIFEST = "_manifest.json"  # of a finished step of the flows
GIT_SECONDS = 10


class Noted(Settings):
    """Base of what is read back: what a later release added is kept, not refused."""

    model_config = ConfigDict(extra="allow")


class Repeated(Noted):
    """Steps that were done after the last checkpoint, and so again."""

    first: int
    """Number of the first one."""
    last: int
    """Number of the last one."""
    seconds: float
    """What they had taken."""


class Start(Noted):
    """One start of the job."""

    at: str
    """When, ISO 8601 in UTC."""
    host: str
    """Name of the first rank's machine."""
    world: int
    """Processes."""
    layout: str
    """How they share the model and the data."""
    device: str
    """What they compute on: cpu, or the name of the GPU."""
    step: int
    """Steps that were done before."""
    versions: dict[str, str]
    """Of gpt2train, Python and torch."""
    commit: str | None = None
    """Of the checkout that gpt2train runs from; ends with -dirty where files were changed. None without one."""
    repeated: Repeated | None = None
    """Steps of the start before that are done again."""


class CorpusNote(Noted):
    """One of the corpora that a run is trained on."""

    prefix: str
    """Its files, without .bin and .idx."""
    identity: str
    """Hash of its documents' lengths and of a part of its tokens, the same wherever it lies."""
    fingerprint: str | None = None
    """Fingerprint of the step that made the tokens; None where no manifest lies beside them."""
    tokens: int
    """How many it has."""
    share: float
    """Of the samples, 0 to 1."""


class RunRecord(Noted):
    """What `run.json` holds."""

    format: int = FORMAT
    """Version of this file."""
    preset: str | None = None
    """Preset that the settings began with, where a flow started the run."""
    inputs: dict[str, str] = {}
    """Steps whose outputs a flow gave: name -> fingerprint:content."""
    launch: dict[str, Any] = {}
    """How a flow started the job."""
    parameters: int | None = None
    """Of the model, the padded vocabulary included."""
    data: tuple[CorpusNote, ...] = ()
    """What it is trained on."""
    starts: tuple[Start, ...] = ()
    """Each start of the job, the first one first."""

    @property
    def repeated_seconds(self) -> float:
        """Time that steps took which were done again."""
        return sum(start.repeated.seconds for start in self.starts if start.repeated)


def read_record(run: str | Path) -> RunRecord | None:
    """What a run folder says of itself; None where it says nothing.

    Raises:
        RunError: the file is no such record.
    """
    path = Path(run) / RECORD
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RunError(
            f"{path} cannot be read as the record of a run; move it away, the next start writes it"
        ) from error


def note_flow(run: str | Path, preset: str, inputs: Mapping[str, str], launch: Mapping[str, Any]) -> None:
    """Write what a flow knows of a run that it is about to start; the starts so far stay.

    Raises:
        UserError: the folder cannot be written.
    """
    _write(run, _before(run).model_copy(update={"preset": preset, "inputs": dict(inputs), "launch": dict(launch)}))


def note_start(
    config: RunConfig, step: int, *, world: int, layout: str, device: str, corpora: Sequence[tuple[str, int, float]]
) -> None:
    """Add a start; called by the first rank before `metrics.jsonl` is cut back to where the run goes on.

    Args:
        step: where it goes on.
        corpora: identity, tokens and share of each of the run's corpora.

    Raises:
        UserError: the folder cannot be written.
    """
    before = _before(config.output)
    start = Start(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        world=world,
        layout=layout,
        device=device,
        step=step,
        versions=versions(),
        commit=commit(),
        repeated=_repeated(config.output, step, before.starts),
    )
    data = tuple(
        CorpusNote(
            prefix=corpus.prefix,
            identity=identity,
            fingerprint=token_fingerprint(corpus.prefix),
            tokens=tokens,
            share=share,
        )
        for corpus, (identity, tokens, share) in zip(config.data.corpora, corpora, strict=True)
    )
    update = {"parameters": parameter_count(config.shape), "data": data, "starts": (*before.starts, start)}
    _write(config.output, before.model_copy(update=update))


def token_fingerprint(prefix: str) -> str | None:
    """Fingerprint in the manifest beside token files, `tokens/_manifest.json` of `tokens/train/tokens`."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        manifest = json.loads((Path(prefix).parent.parent / MANIFEST).read_bytes())
        return str(manifest["fingerprint"]) if manifest["step"] == "tokenize" else None
    return None


def versions() -> dict[str, str]:
    """Releases that a run's numbers can depend on."""
    return {
        "gpt2train": gpt2train.__version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def commit() -> str | None:
    """The commit of the checkout that this package is imported from; None where it is installed, or git is not."""
    checkout = Path(gpt2train.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # looks only: another git may be at work there
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
        return done.stdout.strip() or None
    return None


def _before(run: str | Path) -> RunRecord:
    """The record so far. One that cannot be read is set aside: a training must not end for it."""
    try:
        return read_record(run) or RunRecord()
    except RunError:
        path = Path(run) / RECORD
        path.replace(path.with_name(f"{RECORD}.unreadable"))
        return RunRecord()


def _write(run: str | Path, record: RunRecord) -> None:
    text = json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False)
    write_whole(Path(run) / RECORD, text.encode() + b"\n")


def _repeated(run: str, step: int, starts: Sequence[Start]) -> Repeated | None:
    """The steps beyond `step` that were done before. Rows that an earlier start has counted, and was killed before it
    cut them off, are not counted twice."""
    rows = [row for row in read_metrics(run) if row["step"] > step]
    if not rows:
        return None
    found = Repeated(
        first=rows[0]["step"], last=rows[-1]["step"], seconds=sum(row.get("seconds") or 0.0 for row in rows)
    )
    counted = next((start.repeated for start in reversed(starts) if start.repeated), None)
    return None if counted == found else found
