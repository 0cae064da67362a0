"""Verification of an output: every step in turn, from hashes to batches that are done again."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gpt2train.errors import RunError, UserError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest
from gpt2train.store.output import MissingInputError, Output, check_no_removal
from tasks.outputs.verify.differences import first_difference
from tasks.outputs.verify.documents import check_documents
from tasks.outputs.verify.records import Finding, check_records
from tasks.outputs.verify.redo import NotRedoneError, RedoRunner, redo, sample
from tasks.outputs.verify.steps import redoable


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
        UserError: The output has no finished step, or none of a given name, or a removal of pages was interrupted.
    """
    check_no_removal(root)
    output = Output(root)
    names = sorted({manifest.step for manifest in output.manifests.values()})
    if not names and not output.unreadable:
        raise UserError(f"{root.url} holds no finished step; give the --output of a flow")
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
                if again.size(name) is not None and (found := first_difference(kept, again, name)):
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
    elif found := first_difference(kept, again, old.name):
        finding.problems.append(f"{finding.folder}/{old.name}: {found}")
    else:
        finding.notes.append(f"{finding.folder}/{old.name}: equal rows in a file of another writer")
