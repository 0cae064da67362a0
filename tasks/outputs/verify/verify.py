"""Verification of an output: every step in turn, from hashes to batches that are done again."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gpt2train.errors import RunError, UserError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest
from gpt2train.store.output import MissingInputError, Output, check_no_removal
from tasks.outputs.verify.documents import check_documents
from tasks.outputs.verify.records import Finding, check_records
from tasks.outputs.verify.redo import NotRedoneError, RedoRunner, redo, sample
from tasks.outputs.verify.steps import redoable

BLOCK = 1 << 20
SHOWN = 40  # characters of a value


@dataclass(frozen=True)
class Options:
    """Extent of a verification."""

    batches: int  # random batches of each step that are done again, and documents that are tokenised again
    seed: int  # seed of the choice
    whole_bytes: int  # largest input of a step that is done again as a whole
    workers: int  # worker processes
    accept: bool  # take outputs of other package versions for equal if their bytes are


def verify(root: Folder, steps: tuple[str, ...], options: Options) -> Iterator[Finding]:
    """Verify the steps of an output in the order of their folders; those named, or all. Nothing is written there.

    Raises:
        UserError: The folder is no output, it has no finished step of a given name, or a removal was interrupted.
    """
    check_no_removal(root)
    output = Output(root)
    names = sorted({manifest.step for manifest in output.manifests.values()})
    if not names and not output.unreadable:
        raise UserError(f"{root.url} holds no finished step; give the --output of a flow")
    if "" in output.manifests:
        raise UserError(f"{root.url} is a step of an output, not all of it; give the --output of a flow")
    if missing := [step for step in steps if step not in names]:
        raise UserError(f"{root.url} has no finished step {missing[0]!r}; it has {', '.join(names)}")
    for folder in output.unreadable:
        problem = f"{folder}/{MANIFEST} is damaged, or of a release with another format"
        yield Finding("unknown", folder, problems=[problem])
    for folder, manifest in output.manifests.items():
        if steps and manifest.step not in steps:
            continue
        finding = check_records(output, folder, manifest, options.accept)
        if options.batches:
            _do_again(output, manifest, options, finding)
        yield finding


def _do_again(output: Output, made: Manifest, options: Options, finding: Finding) -> None:
    """Do a step again in part or as a whole, and add what differs to its finding."""
    try:
        if made.step == "tokenize":
            compared, problems = check_documents(output, made, options.batches, options.seed)
            finding.redone, finding.problems = count_of(compared, "document"), [*finding.problems, *problems]
        known = redoable(made.step)
        inputs = [one for name in made.inputs.values() if (one := output.find(name)) is not None]
        size = sum(record.bytes for manifest in inputs for record in manifest.outputs)
        if known.whole and size > options.whole_bytes:
            raise NotRedoneError(f"its {size / 2**20:,.0f} MiB of input are more than --whole-mib")
        chosen = None if known.whole else sample(options.batches, options.seed, made.step, finding.damaged)
        with tempfile.TemporaryDirectory(prefix="gpt2train-verify-") as temporary:
            scratch = Folder(Path(temporary))
            with RedoRunner(made, scratch, options.workers, chosen) as runner:
                done, differing, counts = redo(lambda r: known.call(output, made, r, scratch), made, runner)
            finding.redone = ", ".join(filter(None, [finding.redone, done]))
            finding.problems += counts
            kept, again = output.root / made.folder, scratch / made.folder
            for old, new in differing:
                _add_difference(finding, kept, again, old, new)
            for name in finding.damaged:  # the manifest may be right where the file is not
                if again.size(name) is not None and (found := _first_difference(kept, again, name)):
                    finding.problems.append(f"{made.folder}/{name}: {found}")
    except (NotRedoneError, MissingInputError) as reason:
        finding.notes.append(f"not done again: {reason}")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        finding.notes.append(f"not done again: its setting {name} is unknown or wrong here; is its plug-in installed?")
    except (UserError, RunError, OSError, LookupError, ValueError) as error:
        finding.notes.append(f"not done again: {' '.join(str(error).split()) or type(error).__name__}")


def _add_difference(
    finding: Finding, kept: Folder, again: Folder, old: FileRecord | None, new: FileRecord | None
) -> None:
    """Add a file whose record differs from the one that was done again, unless only its footer does."""
    if old is None or new is None:
        name = (old or new).name  # type: ignore[union-attr] # one of them is a record
        lack = "it is not in the manifest, but is made" if old is None else "it is in the manifest, but is not made"
        finding.problems.append(f"{finding.folder}/{name}: {lack} when the step is done again")
    elif old.name in finding.damaged:
        return  # compared below
    elif (old.rows, old.bytes) != (new.rows, new.bytes) and old.sha256 == new.sha256:
        finding.problems.append(
            f"{finding.folder}/{old.name}: {count_of(old.rows or 0, 'row')} in the manifest, {new.rows} in the file"
        )
    elif found := _first_difference(kept, again, old.name):
        finding.problems.append(f"{finding.folder}/{old.name}: {found}")
    else:
        finding.notes.append(f"{finding.folder}/{old.name}: equal rows in a file of another writer")


def _first_difference(kept: Folder, redone: Folder, name: str) -> str | None:
    """Describe the first difference of a file in the output from the one that was done again; None for equal content.

    Two Parquet files of other bytes have equal content if their rows are equal: their footers name the release of
    pyarrow that wrote them.
    """
    sizes = kept.size(name), redone.size(name)
    if sizes[0] is None or sizes[1] is None:
        return "missing in the output" if sizes[0] is None else "not made again"
    if name.endswith(".parquet"):
        return _first_row(kept, redone, name)
    return _first_byte(kept, redone, name)


def _first_row(kept: Folder, redone: Folder, name: str) -> str | None:
    with redone.open(name) as file:
        new = pq.read_table(file)
    try:
        with kept.open(name) as file:
            old = pq.read_table(file)
        old.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        return f"no readable Parquet file ({str(error).splitlines()[0][:80]})"
    if old.schema.remove_metadata() != new.schema.remove_metadata():
        return f"columns {old.schema.names} in the output, {new.schema.names} when done again"
    found: tuple[int, str, str] | None = None
    for column in new.column_names:
        pairs = zip(old[column].to_pylist(), new[column].to_pylist(), strict=False)
        row = next((row for row, (one, other) in enumerate(pairs) if one != other and repr(one) != repr(other)), None)
        if row is not None and (found is None or row < found[0]):
            values = f"{_short(old[column][row])} in the output, {_short(new[column][row])} when done again"
            found = row, column, values
    if found:
        return f"row {found[0]}, column {found[1]}: {found[2]}"
    if old.num_rows != new.num_rows:
        return f"{count_of(old.num_rows, 'row')} in the output, {new.num_rows:,} when done again"
    return None


def _short(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _first_byte(kept: Folder, redone: Folder, name: str) -> str | None:
    position = 0
    with kept.open(name) as old, redone.open(name) as new:
        while True:
            one, other = old.read(BLOCK), new.read(BLOCK)
            if one != other:
                pairs = enumerate(zip(one, other, strict=False))
                first = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
                return f"byte {position + first:,}"
            if not one:
                return None
            position += len(one)
