"""Record of a run in `run.json`: its inputs, and every start of the job. Imports no torch.

    {"format": 1, "preset": "345m", "inputs": {"tokenize": "…"}, "launch": {…}, "parameters": 354823168,
     "data": [{"prefix": …, "identity": …, "fingerprint": …, "tokens": …, "share": 1.0}],
     "starts": [{"at": "2026-01-31T12:00:00+00:00", "host": …, "world": 8, "layout": …, "step": 0, …}]}

The flow writes its part before the job starts; rank 0 adds a start before its first step. The file is replaced
atomically, so that it can be read at any time, also after a `kill -9`. It contains times and host names: no
fingerprint, hash or checkpoint of a run depends on it.
"""

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

import gpt2train
from gpt2train.config import RunConfig
from gpt2train.errors import RunError
from gpt2train.model.families import parameter_count
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import Record
from gpt2train.store.files import set_aside, write_atomic
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, read_manifest
from gpt2train.store.run_folder import RECORD

log = logging.getLogger("gpt2train")

FORMAT = 1
GIT_SECONDS = 10


class LenientRecord(Record):
    """Base class of stored models: unknown fields, written by a later release, are kept."""

    model_config = ConfigDict(extra="allow")


class RedoneSteps(LenientRecord):
    """Steps that were done after the last checkpoint of a start, and are repeated by the next one."""

    first: int  # number of the first step
    last: int  # number of the last step
    seconds: float  # time that the steps had taken
    joules: float = 0.0  # energy that the GPUs had taken, as far as it was measured
    cpu_joules: float = 0.0  # the same of the CPUs


class Start(LenientRecord):
    """One start of the job."""

    at: str  # time, ISO 8601 in UTC
    host: str  # host name of rank 0
    world: int  # world size
    layout: str  # parallel layout
    device: str  # device: cpu, or the name of the GPU
    step: int  # steps done before
    versions: dict[str, str]  # versions of gpt2train, Python and torch
    commit: str | None = None
    """Commit of the checkout that gpt2train runs from, with -dirty if files were changed; None without a checkout."""
    repeated: RedoneSteps | None = None  # steps of the previous start that are repeated


class CorpusNote(LenientRecord):
    """Training corpus of a run."""

    prefix: str  # path of its files, without .bin and .idx
    identity: str  # hash of its document lengths and of a sample of its tokens, independent of its path
    fingerprint: str | None = None
    """Fingerprint of the step that made the tokens; None if there is no manifest beside them."""
    tokens: int  # number of tokens
    share: float  # share of the samples, 0 to 1


class EarlyStop(LenientRecord):
    """End of a run before its last step, by a callback or by `validation.stop_at`: the run is finished."""

    step: int  # last step
    reason: str  # the callback and its reason, or the values that were reached
    callbacks: Any  # setting `callbacks` of the run; with another one, the run goes on
    stop_at: dict[str, float] = {}  # the same of `validation.stop_at`


class RunRecord(LenientRecord):
    """Content of `run.json`."""

    format: int = FORMAT  # version of the file format
    preset: str | None = None  # preset of the settings, if a flow started the run
    inputs: dict[str, str] = {}  # steps whose outputs a flow passed in: name -> fingerprint:content
    launch: dict[str, Any] = {}  # launch settings of the flow
    parameters: int | None = None  # number of parameters of the model, including the padded vocabulary
    data: tuple[CorpusNote, ...] = ()  # training corpora
    starts: tuple[Start, ...] = ()  # starts of the job, oldest first
    init_from: str | None = None  # model or checkpoint that it began from; of the hub with its commit
    early_stop: EarlyStop | None = None  # end of the run before its last step, if a callback asked for it

    def repeated(self, name: Literal["seconds", "joules", "cpu_joules"]) -> float:
        """Total time or energy of the steps that were repeated."""
        return sum(getattr(start.repeated, name) for start in self.starts if start.repeated)


def read_record(run: str | Path) -> RunRecord | None:
    """Read the record of a run folder; None if it has none.

    Raises:
        RunError: the file is not a valid record.
    """
    path = Path(run) / RECORD
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        remedy = "move it away, and the next start writes a new one"
        raise RunError(f"{path} cannot be read as the record of a run; {remedy}") from error


def record_flow(run: str | Path, preset: str, inputs: Mapping[str, str], launch: Mapping[str, Any]) -> None:
    """Record preset, inputs and launch settings of a run that a flow is about to start; earlier starts are kept.

    Raises:
        UserError: the folder cannot be written.
    """
    _write(run, _before(run).model_copy(update={"preset": preset, "inputs": dict(inputs), "launch": dict(launch)}))


def record_start(
    config: RunConfig,
    step: int,
    *,
    world: int,
    layout: str,
    device: str,
    corpora: Sequence[tuple[str, int, float]],
    source: str = "",
) -> None:
    """Record a start, with identity, number of tokens and share of each corpus, and its source if it has just begun.

    Rank 0 calls it before `metrics.jsonl` is truncated to the step from which the run resumes.

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
    prefixes = [corpus.prefix for corpus in config.data.corpora]
    # The fingerprint is that of all documents; another split of them is other data.
    fingerprints = [None if config.data.split else token_fingerprint(prefix) for prefix in prefixes]
    data = tuple(
        CorpusNote(prefix=prefix, identity=name, fingerprint=fingerprint, tokens=tokens, share=share)
        for prefix, fingerprint, (name, tokens, share) in zip(prefixes, fingerprints, corpora, strict=True)
    )
    update = {
        "parameters": parameter_count(config.shape),
        "data": data,
        "starts": (*before.starts, start),
        "init_from": source or before.init_from,
        "early_stop": find_early_stop(config, step),
    }
    _write(config.output, before.model_copy(update=update))


def find_early_stop(config: RunConfig, step: int) -> EarlyStop | None:
    """Return the early stop by which a run is finished at a step, or None if it goes on.

    It goes on with another setting `callbacks` or `validation.stop_at`, and from a checkpoint before the last one.
    """
    found = _before(config.output).early_stop
    if found is None or found.step != step or found.stop_at != config.validation.stop_at:
        return None
    return found if found.callbacks == _callbacks(config) else None


def record_early_stop(config: RunConfig, step: int, reason: str) -> None:
    """Record that a run is finished at a step, for a callback's reason or by `validation.stop_at`."""
    stop = EarlyStop(step=step, reason=reason, callbacks=_callbacks(config), stop_at=config.validation.stop_at)
    _write(config.output, _before(config.output).model_copy(update={"early_stop": stop}))


def token_fingerprint(prefix: str) -> str | None:
    """Fingerprint from the manifest of the data step that made token files; None if none did."""
    manifest = tokenize_manifest(prefix)
    return None if manifest is None else manifest.fingerprint


def tokenize_manifest(prefix: str | Path) -> Manifest | None:
    """Manifest of the data step that made token files: `tokens/_manifest.json` for `tokens/train/tokens`.

    None for files made elsewhere, which may lie in the folder of a data flow: the manifest does not name them, or names
    files of another size. Files that are gone have the sizes of the manifest.
    """
    path = Path(prefix)
    made = None
    with contextlib.suppress(OSError):  # such as one that may not be read
        made = read_manifest(Folder(path.parent.parent))
    sizes = {record.name: record.bytes for record in made.outputs} if made and made.step == "tokenize" else {}
    for file in (path.with_name(f"{path.name}.{suffix}") for suffix in ("bin", "idx")):
        size = sizes.get(f"{path.parent.name}/{file.name}")
        if size is None or (file.exists() and file.stat().st_size != size):
            return None
    return made


def versions() -> dict[str, str]:
    """Versions of the packages that the losses of a run can depend on."""
    return {
        "gpt2train": gpt2train.__version__,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def commit() -> str | None:
    """Commit of the checkout that this package is imported from; None if it is installed, or git is missing."""
    checkout = Path(gpt2train.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # read-only: another git may be running there
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
        return done.stdout.strip() or None
    return None


def _callbacks(config: RunConfig) -> Any:
    """Setting `callbacks` as it reads back from JSON."""
    return config.model_dump(mode="json").get("callbacks")


def _before(run: str | Path) -> RunRecord:
    """Existing record. An unreadable one is moved aside, since it must not end the training."""
    try:
        return read_record(run) or RunRecord()
    except RunError:
        path = Path(run) / RECORD
        aside = set_aside(path)
        log.warning("%s cannot be read as the record of a run; moved to %s", path, aside)
        return RunRecord()


def _write(run: str | Path, record: RunRecord) -> None:
    text = json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False)
    write_atomic(Path(run) / RECORD, text.encode() + b"\n")


def _repeated(run: str, step: int, starts: Sequence[Start]) -> RedoneSteps | None:
    """Steps after `step` that were done before.

    Rows are not counted twice if an earlier start has counted them and was killed before it removed them.
    """
    rows = [row for row in read_metrics(run) if row["step"] > step]
    if not rows:
        return None
    columns = {"seconds": "seconds", "joules": "gpu_joules", "cpu_joules": "cpu_joules"}
    sums = {name: sum(row.get(column) or 0.0 for row in rows) for name, column in columns.items()}
    found = RedoneSteps(first=rows[0]["step"], last=rows[-1]["step"], **sums)
    counted = next((start.repeated for start in reversed(starts) if start.repeated), None)
    return None if counted == found else found
