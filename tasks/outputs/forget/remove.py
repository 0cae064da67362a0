"""Removal of pages by its plan, repeatable from any point at which it was killed, and the scan that proves it."""

import contextlib
import shutil
from pathlib import Path, PurePosixPath

from gpt2train.errors import RunError, UserError
from gpt2train.store.counts import count_of
from gpt2train.store.files import write_atomic
from gpt2train.store.folder import TEMPORARY, Folder
from gpt2train.store.manifest import MANIFEST, canonical, read_manifest
from gpt2train.store.removal import PENDING
from gpt2train.store.run_folder import BEST, LATEST
from gpt2train.store.run_folder import FOLDER as CHECKPOINTS
from gpt2train.store.run_folder import MANIFEST as CHECKPOINT_MANIFEST
from tasks.core.forgotten import FORGOTTEN, Forgotten, encode_forgotten, read_forgotten
from tasks.download.journal import clear_journals
from tasks.outputs.forget.decode import LINES, json_line
from tasks.outputs.forget.plan import Removal
from tasks.outputs.forget.rewrite import rewrite_step
from tasks.outputs.forget.scan import Scanned, Searcher, Trace, is_traced, scan
from tasks.outputs.forget.training import MERGE_RECORDS, MERGED, RunReading, write_settings

KEPT = ("config.toml", "run.json")  # files of a run without which it is none


def pending_removal(root: Folder) -> Removal | None:
    """Read the removal that was interrupted; None if there is none.

    Raises:
        UserError: Its file is damaged, or names a file outside of the output.
    """
    if root.size(PENDING) is None:
        return None
    try:
        return Removal.model_validate_json(root.read_bytes(PENDING), context={"place": root.location(PENDING)})
    except ValueError as error:
        raise UserError(
            f"{root.url}/{PENDING} is damaged; restore it, or remove it, forget the same URLs again and look into the "
            "files beside the steps, since texts of pages that are gone cannot be searched for"
        ) from error


def remove_pages(root: Folder, removal: Removal) -> Scanned:
    """Remove the pages of a plan, and search every file for what is left.

    Raises:
        RunError: A file still has a text or URL of the pages; the removal stays pending.
    """
    root.write_bytes(PENDING, canonical(removal.model_dump(mode="json")))
    _sweep_drafts(root, removal)
    forgotten = read_forgotten(root).united(removal.wanted)
    root.write_bytes(FORGOTTEN, encode_forgotten(forgotten))
    for reading in removal.runs:
        write_settings(reading)
        if removal.delete_checkpoints:
            _delete_checkpoints(reading)
    clear_journals(root / "pages")  # of a store they are on this machine
    for folder in removal.removed:  # all manifests first: from then on nobody trusts the files
        (root / folder).remove(MANIFEST)
    for folder in removal.removed:
        _remove_folder(root, folder)
    for step in removal.rewritten:
        forgotten = _rewrite(root, step.folder, forgotten, step.inputs)
    searcher = Searcher(removal.wanted, removal.pages, removal.found.texts)
    for trace in removal.traces:
        if trace.is_readable:  # nobody knows what is in the others
            _remove_trace(root, trace, searcher)
    seen = scan(root, removal.wanted, removal.pages, removal.found.texts, removal.sources)
    if seen.traces:
        shown = "; ".join(f"{trace.file} {trace.place}: {trace.what}" for trace in seen.traces[:5])
        remedy = "remove what is named, then run again"
        raise RunError(f"a trace is left in {count_of(len(seen.traces), 'file')} of {root.url}: {shown}; {remedy}")
    root.remove(PENDING)
    return seen


def _sweep_drafts(root: Folder, removal: Removal) -> None:
    """Remove the drafts that a killed removal left beside files of no step; the steps' folders are swept with them."""
    runs = [Path(reading.run) for reading in removal.runs]
    folders = {*runs, *(run / CHECKPOINTS for run in runs)}
    if root.is_local:
        folders |= {Path(root.path(trace.file)).parent for trace in removal.traces}
    for folder in sorted(folders):
        for draft in folder.glob(f"{TEMPORARY}*"):
            draft.unlink(missing_ok=True)


def _rewrite(root: Folder, folder: str, forgotten: Forgotten, links: dict[str, str]) -> Forgotten:
    """Rewrite a step that takes pages from outside; return the list with the aliases of the rewritten lists of URLs."""
    made = read_manifest(root / folder)
    if made is None:
        raise RunError(f"{root.url}/{folder}/{MANIFEST} is missing or damaged; remove {folder}, then run again")

    def remember(changed: dict[str, str]) -> None:
        nonlocal forgotten
        aliases = {new: forgotten.aliases.get(old, old) for new, old in changed.items()}
        forgotten = forgotten.united(Forgotten(aliases=aliases))
        root.write_bytes(FORGOTTEN, encode_forgotten(forgotten))

    rewrite_step(root, made, forgotten, links, remember if made.step == "discover" else None)
    return forgotten


def _remove_folder(root: Folder, folder: str) -> None:
    """Remove a folder with all its files."""
    clear_journals(root / folder)
    (root / folder).remove(*(root / folder).files())
    if root.is_local:
        shutil.rmtree(root.path(folder), ignore_errors=True)  # empty folders


def _remove_trace(root: Folder, trace: Trace, searcher: Searcher) -> None:
    """Remove the file of a trace, its lines, or the whole step that made it."""
    name = trace.file
    if PurePosixPath(name).name in KEPT:
        return
    if trace.step:  # also if the file is gone: a kill may have left others of the step, or its folders
        folder = root / trace.step
        folder.remove(*(name for name in folder.files() if PurePosixPath(name).name == MANIFEST))
        _remove_folder(root, trace.step)
    elif root.size(name) is None:
        return
    elif name.endswith(LINES):
        lines = root.read_bytes(name).splitlines(keepends=True)
        kept = [line for line in lines if not is_traced(json_line(line, ""), searcher)]
        root.write_bytes(name, b"".join(kept))
    else:
        root.remove(name)


def _delete_checkpoints(reading: RunReading) -> None:
    """Remove the checkpoints after the first step that read the pages, and the model that was merged from one of them.

    `latest` names the checkpoint before.
    """
    folder = Path(reading.run) / CHECKPOINTS
    if reading.later:
        for name in (LATEST, BEST):
            with contextlib.suppress(OSError):
                if (folder / name).read_text().strip() in reading.later:
                    (folder / name).unlink()
        if reading.checkpoint is not None:
            write_atomic(folder / LATEST, f"{reading.checkpoint}\n".encode())
    for name in reading.later:
        (folder / name / CHECKPOINT_MANIFEST).unlink(missing_ok=True)  # without it the folder is no checkpoint
        shutil.rmtree(folder / name, ignore_errors=True)
    if reading.merged:
        for name in (MERGE_RECORDS, MERGED):  # first what says that the model is complete
            shutil.rmtree(Path(reading.run) / name, ignore_errors=True)
