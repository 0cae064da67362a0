"""What the trainings on an output have read of pages: samples, steps, and the checkpoint before the first of them."""

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.config import CONFIG_FILE, RunConfig, TrainSettings, read_run_settings, to_toml
from gpt2train.config.data import MixtureSettings
from gpt2train.data.sharded_dataset import open_tokens, tokens_identity
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.run_record import read_record
from gpt2train.runs.reading_order import PACKED, ReadingOrder
from gpt2train.runs.trace import document_tables
from gpt2train.settings import Record, Settings
from gpt2train.store.files import write_atomic
from gpt2train.store.folder import Folder
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.manifest import read_manifest
from gpt2train.store.run_folder import FOLDER as CHECKPOINTS
from gpt2train.store.run_folder import checkpoint_step, list_checkpoints
from tasks.core.forgotten import Forgotten
from tasks.core.stage_inputs import INPUTS

MAX_LISTED = 1000  # samples and steps
MERGED = "model"  # folder of a run with its weights for transformers
MERGE_RECORDS = "merge"  # folder that says that these are complete
GO_ON = "forget.toml"  # settings of the flow that goes on, in the run folder


class GoOn(Settings):
    """Settings of the training flow."""

    preset: str
    data: str
    output: str
    train: TrainSettings
    launch: dict[str, Any]


class RunReading(Record):
    """What a run has read of the pages."""

    run: str  # run folder
    documents: int = 0  # training documents
    samples: int = 0  # samples of its training order that hold them, up to the last step so far
    first_samples: tuple[int, ...] = ()
    steps: int = 0  # steps that read these samples
    first_steps: tuple[int, ...] = ()  # from 0, as in `gpt2train trace`
    checkpoint: InnerPath | None = None
    """Last checkpoint before the first of these steps; None if there is none, or if no step has read the pages."""
    later: tuple[InnerPath, ...] = ()  # checkpoints after it: their weights depend on the pages
    merged: bool = False  # True if its merged model has the weights of one of these
    inherited: str = ""  # run from whose weights it began, directly or by others, and which had read the pages by then
    outside: tuple[str, ...] = ()
    """Other outputs that hold tokens of the pages which it reads, of a mixture or copied from an object store."""
    data: str = ""  # output that its first tokens were copied from, if it is the one of the removal
    note: str = ""  # reason for which steps are not known, of some or of all tokens


def find_runs(root: Folder, name: str | None) -> list[Path]:
    """Return the run folders of an output, or the one that is named, there or by its path.

    Raises:
        UserError: There is no such run.
    """
    if name is None:
        return sorted(path.parent for path in Path(root.path()).glob(f"runs/*/{CONFIG_FILE}")) if root.is_local else []
    candidates = [Path(root.path()) / "runs" / name] if root.is_local else []
    for path in (*candidates, Path(name)):
        if (path / CONFIG_FILE).is_file():
            return [path.absolute()]
    raise UserError(f"there is no run {name} in {root.url}/runs, and no run folder at {name}")


def read_by(run: Path, wanted: Forgotten, root: Folder | None = None) -> RunReading:
    """Find what a run has read of the pages, itself and in the runs whose weights it began from.

    With the output of the removal, the tokens outside of it are found as well.
    """
    try:
        config = read_run_settings(run)
    except (UserError, RunError, OSError) as error:
        return RunReading(run=str(run), note=" ".join(str(error).split()))
    reading, steps = _own_reading(run, config, wanted)
    if root is not None and reading.documents:
        reading = reading.model_copy(update={"outside": _outside(config, wanted, root), "data": _copied(config, root)})
    origin = _inherited(config, wanted)
    if not steps and not origin:
        return reading
    checkpoints = list_checkpoints(run)
    before = [] if origin else [path.name for path in checkpoints if checkpoint_step(path) <= steps[0]]
    later = tuple(path.name for path in checkpoints if path.name not in before)
    update = {"checkpoint": before[-1] if before else None, "later": later, "inherited": origin}
    return reading.model_copy(update=update | {"merged": merged_checkpoint(run) in (*later, "")})


def _own_reading(run: Path, config: RunConfig, wanted: Forgotten) -> tuple[RunReading, list[int]]:
    """Find what a run itself has read, by the tables beside the tokens of its corpora; and all steps that did."""
    unread = ""
    if config.data.split is not None:
        unread = "its token files were made elsewhere: which documents are pages is not known; they are left alone"
    elif config.objective.name not in PACKED:
        unread = f"the objective {config.objective.name} reads no packed documents; its samples are not known here"
    if unread:
        return RunReading(run=str(run), note=unread), []
    order, found, documents, unknown = ReadingOrder(run, config), list[np.ndarray](), 0, list[str]()
    try:
        record = read_record(run)
        for number, corpus in enumerate(config.data.corpora):
            try:
                starts = document_starts(Path(corpus.prefix), wanted)
            except UserError as error:  # removed, and not made again yet, or made elsewhere
                unknown.append(str(error))
                continue
            documents += len(starts)
            known = record.data[number].identity if record is not None and number < len(record.data) else None
            if len(starts) and known is not None and tokens_identity(open_tokens(corpus.prefix))[0] != known:
                note = f"{corpus.prefix} has other tokens than those that it was trained on: its steps are not known"
                return RunReading(run=str(run), documents=documents, note=note), []
            if len(starts):
                found.append(order.of_documents(number, starts))
    except (UserError, RunError, OSError) as error:
        return RunReading(run=str(run), note=" ".join(str(error).split())), []
    samples = np.unique(np.concatenate(found)).tolist() if found else []
    steps = order.steps(samples)
    listed = {"first_samples": tuple(samples[:MAX_LISTED]), "first_steps": tuple(steps[:MAX_LISTED])}
    counts = {"documents": documents, "samples": len(samples), "steps": len(steps)}
    return RunReading(run=str(run), note="; ".join(unknown), **counts, **listed), steps


def _inherited(config: RunConfig, wanted: Forgotten) -> str:
    """Return the first run from whose weights a run began that had read the pages by then; empty if none had."""
    for run, step in ancestors(config):
        try:
            steps = _own_reading(run, read_run_settings(run), wanted)[1]
        except (UserError, RunError, OSError):
            continue
        if steps and (step is None or steps[0] < step):
            return str(run)
    return ""


def start_of(config: RunConfig) -> tuple[Path, int | None] | None:
    """Return the run whose weights a run began from, and the step of its checkpoint; None for any other start.

    The step is None for the newest checkpoint of a run, or its merged model: that may be of any step so far.
    """
    if config.checkpoints.init_from is None:
        return None
    source = Path(config.checkpoints.init_from)
    if source.parent.name == CHECKPOINTS:
        try:
            run, step = source.parent.parent, checkpoint_step(source)
        except ValueError:
            return None
    else:
        run, step = source.parent if source.name == MERGED else source, None
    return (run, step) if (run / CONFIG_FILE).is_file() else None


def ancestors(config: RunConfig) -> list[tuple[Path, int | None]]:
    """Return the run that a run began from, the one that this one began from, and so on, each with its step."""
    found: list[tuple[Path, int | None]] = []
    while (start := start_of(config)) is not None and start[0] not in [run for run, _ in found]:
        found.append(start)
        try:
            config = read_run_settings(start[0])
        except (UserError, RunError, OSError):
            break
    return found


def merged_checkpoint(run: Path) -> str | None:
    """Return the name of the checkpoint whose weights a run's merged model has; None if there is no such model.

    Empty if the record of the training is gone or damaged.
    """
    if not (run / MERGED).is_dir():
        return None
    training = read_manifest(Folder(run))
    files = [record.name.split("/") for record in training.outputs] if training else []
    names = {parts[1] for parts in files if parts[0] == CHECKPOINTS and len(parts) > 2}
    return names.pop() if len(names) == 1 else ""


def _outside(config: RunConfig, wanted: Forgotten, root: Folder) -> tuple[str, ...]:
    """Return the other outputs whose tokens of the pages a run reads."""
    here, found = Path(root.path()) if root.is_local else None, set[str]()
    for corpus in config.data.corpora:
        prefix = Path(corpus.prefix)
        if here is not None and prefix.is_relative_to(here):
            continue
        with contextlib.suppress(UserError):  # no table of the documents
            if len(document_starts(prefix, wanted)):
                output = prefix.parents[2]
                found.add(str(output.parents[1] if output.parent.name == INPUTS else output))
    return tuple(sorted(found))


def _copied(config: RunConfig, root: Folder) -> str:
    """Return the address of an object store if the first tokens of a run are copies of its own."""
    if root.is_local:
        return ""
    copy, made = read_manifest(Folder(Path(config.data.corpora[0].prefix).parents[1])), read_manifest(root / "tokens")
    return root.url if copy is not None and made is not None and copy.identity == made.identity else ""


def document_starts(prefix: Path, wanted: Forgotten) -> np.ndarray:
    """First tokens of the documents of a corpus that are of the pages.

    Raises:
        UserError: The tokens have no table of their documents.
    """
    starts: list[int] = []
    for table in document_tables(prefix.parents[1], prefix.parent.name):
        for group in range(table.num_row_groups):
            rows = table.read_row_group(group, columns=["url", "start"]).to_pylist()
            starts += [row["start"] for row in rows if wanted.matches(row["url"])]
    return np.array(starts, dtype=np.int64)


def _settings_before(run: Path) -> tuple[str, str]:
    """Return data and first checkpoint of the settings that an earlier removal has written; empty without them."""
    try:
        known = tomllib.loads((run / GO_ON).read_text())
        return str(known.get("data", "")), str(known["train"]["checkpoints"]["init_from"])
    except (OSError, ValueError, LookupError, TypeError):
        return "", ""


def write_settings(reading: RunReading) -> Path | None:
    """Write the settings with which the flow goes on from the checkpoint on the tokens that are made next.

    The new run has the optimizer's state and the remaining steps; its samples begin anew, since the tokens are others.
    None if the run has to begin from the start, or is gone.
    """
    run = Path(reading.run)
    if reading.checkpoint is None or not reading.steps or not (run / CONFIG_FILE).is_file():
        return None
    config = read_run_settings(run)
    checkpoint = run / CHECKPOINTS / reading.checkpoint
    data, before = _settings_before(run)
    if before and Path(before) in list_checkpoints(run):  # later ones have read the pages of the earlier removal
        checkpoint = min(checkpoint, Path(before), key=checkpoint_step)
    steps = max(1, config.steps - checkpoint_step(checkpoint))
    first, *others = config.data.corpora
    train = TrainSettings.model_validate({name: getattr(config, name) for name in TrainSettings.model_fields})
    start = {"init_from": str(checkpoint), "restore": "optimizer"}
    changed = train.model_copy(
        update={
            "steps": steps,
            "epochs": 0.0,
            "schedule": train.schedule.model_copy(update={"warmup": min(train.schedule.warmup, steps - 1)}),
            "checkpoints": train.checkpoints.model_copy(update=start),
            "mixture": MixtureSettings(corpora=tuple(others), weight=first.weight),
        }
    )
    record = read_record(run)
    settings = GoOn(
        preset=(record and record.preset) or "tiny",
        data=reading.data or (data if "://" in data else "") or str(Path(first.prefix).parents[2]),
        output=str(run.parents[1]),
        train=changed,
        launch=record.launch if record else {},
    )
    write_atomic(run / GO_ON, to_toml(settings).encode())
    return run / GO_ON
