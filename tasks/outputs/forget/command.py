"""The command `gpt2train forget`."""

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from gpt2train.command_line import printable
from gpt2train.errors import UserError
from gpt2train.store.counts import count_of
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from gpt2train.store.output_lock import locked
from tasks.outputs.forget.plan import Removal, plan_removal
from tasks.outputs.forget.remove import pending_removal, remove_pages
from tasks.outputs.forget.targets import read_targets
from tasks.outputs.forget.training import GO_ON, MERGED, RunReading

MAX_SHOWN = 5  # names on a line; JSON has all


def forget(
    targets: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "--out"])],
    run: str | None = None,
    yes: Annotated[bool, Parameter(negative=())] = False,
    delete_checkpoints: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Show what an output and its trainings hold of pages, and with --yes remove the pages from all of its files.

    Without --yes nothing is written. A removal that was interrupted is completed by the next call, which needs no
    targets, but --run again if the run lies outside of the output. The exit code is 1 if a file still has a text or a
    URL of the pages afterwards.

    Parameters
    ----------
    targets
        URLs; domains, with their subdomains; files with one of these per line.
    output
        Output folder of a flow, or its fsspec URL.
    run
        Name of the run in runs/, or a run folder elsewhere, whose samples and steps are shown; by default all runs.
    yes
        Remove the pages.
    delete_checkpoints
        Remove also the checkpoints after the first step that read the pages.
    json_
        Print JSON.
    """
    root = Folder.given(output)
    wanted = read_targets(targets)
    if root.is_local and not Path(root.path()).is_dir():
        raise UserError(f"there is no output at {output}; give the --output of a flow")
    if not yes:
        _show_plan(root, wanted, run, json_)
        return
    with locked(root):
        if (pending := pending_removal(root)) is not None:
            _check_runs(root, pending, run)
            _remove(root, pending, json_)
            wanted = [target for target in wanted if target not in pending.targets]
            if not wanted:
                return
        removal = plan_removal(root, wanted, run)
        _remove(root, removal.model_copy(update={"delete_checkpoints": delete_checkpoints}), json_)


def _show_plan(root: Folder, targets: list[str], run: str | None, as_json: bool) -> None:
    if (pending := pending_removal(root)) is not None:
        raise UserError(
            f"{root.url}: the removal of {', '.join(pending.targets[:MAX_SHOWN])} was interrupted; --yes completes it"
        )
    removal = plan_removal(root, targets, run)
    if as_json:
        print(json.dumps(_values(removal), ensure_ascii=False, indent=1))
        return
    _print(root, removal)
    print("nothing was changed; --yes removes the pages")


def _remove(root: Folder, removal: Removal, as_json: bool) -> None:
    if not as_json:
        _print(root, removal)
    seen = remove_pages(root, removal)
    if as_json:
        proof = {"files": seen.files, "bytes": seen.bytes, "traces": 0}
        print(json.dumps(_values(removal) | {"scan": proof}, ensure_ascii=False, indent=1))
        return
    print(f"{count_of(seen.files, 'file')} searched, {format_bytes(seen.bytes)}: no text or URL of the pages is left")
    if removal.removed:
        fetched = {"pages", "commoncrawl", "discover"}.intersection(removal.removed)
        said = f"; {', '.join(sorted(fetched))}, which was interrupted, begins anew" if fetched else ""
        print(f"run the data flow again with its settings, which makes the removed steps again{said}")
    print(f"list: {root.location('forgotten.json')}")


def _values(removal: Removal) -> dict[str, object]:
    """Return the plan for programs, without the texts."""
    return removal.model_dump(mode="json", exclude={"found": {"texts"}, "wanted": True})


def _print(root: Folder, removal: Removal) -> None:
    found = removal.found
    tokens = ", ".join(f"{count:,} {split}" for split, count in found.tokens.items()) or "none"
    lines = [
        f"{root.url}: {count_of(len(found.urls), 'URL')}, {count_of(len(found.documents), 'document')}; "
        f"tokens: {tokens}; "
        f"{count_of(removal.files, 'file')} searched, {format_bytes(removal.bytes)}"
    ]
    if removal.missing:
        lines.append(f"without a page here, but listed for later runs: {_some(removal.missing)}")
    if found.steps:
        lines.append(f"{'step':<24} {'kept':>7} {'rejected':>9} {'other':>7}  files")
    lines += [
        f"{step.folder:<24} {step.kept:>7,} {step.rejected:>9,} {step.other:>7,}  {_some(step.files)}"
        for step in found.steps
    ]
    lines += _about("rewritten without the pages", removal.sources)
    lines += _about("removed, to be made again by the flow", removal.removed)
    traces = [(one.is_readable, f"{one.file} ({one.what})") for one in removal.traces]
    lines += _about("removed, or its lines", tuple(text for is_readable, text in traces if is_readable))
    lines += _about("to be removed by hand", tuple(text for is_readable, text in traces if not is_readable))
    lines += _about("your own files with the pages, left alone", found.user_files)
    lines += _about("copies without their keeper, of which the next deduplication decides anew", found.orphans)
    lines += _about("other pages with the same words, which stay", removal.mirrors)
    for reading in removal.runs:
        lines += _run_lines(reading, removal.delete_checkpoints)
        if not _holds(root, reading.run):
            lines.append(f"  its own files are not searched, as it lies outside of {root.url}")
    if "tokenizer" in removal.removed and any(reading.checkpoint for reading in removal.runs):
        lines += [
            "the tokenizer was trained on these documents too, and is trained again without the pages: if it comes out",
            f"  otherwise, no run goes on; to keep it, copy {root.location('tokenizer')} before --yes,",
            "  and run the data flow with --tokenizer.name folder --tokenizer.folder COPY",
        ]
    print("\n".join(printable(line) for line in lines), flush=True)


def _holds(root: Folder, run: str) -> bool:
    return root.is_local and Path(run).resolve().is_relative_to(Path(root.path()).resolve())


def _check_runs(root: Folder, pending: Removal, run: str | None) -> None:
    """Refuse run folders elsewhere unless the user names them: the file of the removal may be a stranger's."""
    named = None if run is None else Path(run).resolve()
    for reading in pending.runs:
        if not _holds(root, reading.run) and Path(reading.run).resolve() != named:
            raise UserError(
                f"the interrupted removal in {root.url} is of the run {reading.run} too, which lies outside of it; "
                f"if that is right, give --run {reading.run}"
            )


def _about(title: str, names: tuple[str, ...]) -> list[str]:
    return [f"{title}: {_some(names)}"] if names else []


def _run_lines(reading: RunReading, delete: bool) -> list[str]:
    if not reading.steps and not reading.inherited:
        documents = count_of(reading.documents, "training document")
        return [f"{reading.run}: {reading.note or f'no step has read the pages so far ({documents})'}"]
    lines = []
    if reading.steps:
        steps = ", ".join(f"{step:,}" for step in reading.first_steps[:MAX_SHOWN])
        more = ", …" if reading.steps > MAX_SHOWN else ""
        lines.append(
            f"{reading.run}: {count_of(reading.documents, 'document')} in {count_of(reading.samples, 'sample')}, "
            f"read by {count_of(reading.steps, 'step')}: {steps}{more}"
        )
    if reading.inherited:
        lines.append(f"{reading.run}: began from weights of {reading.inherited}, which had read the pages")
    if reading.note:
        lines.append(f"  not known of all its tokens: {reading.note}")
    if reading.outside:
        lines.append(f"  it reads tokens with the pages in {_some(reading.outside)}: forget them there too")
    if reading.later:
        since = "" if reading.inherited else " after the first of them"
        lines.append(f"  checkpoints{since}{', removed' if delete else ''}: {_some(reading.later)}")
    if reading.merged:
        lines.append(f"  model merged from a checkpoint{', removed' if delete else ''}: {reading.run}/{MERGED}")
    if reading.inherited:
        lines.append("  no checkpoint without them: train again from other weights")
    elif reading.checkpoint is None:
        lines.append("  no checkpoint before them: retrain from the start")
    else:
        lines.append(f"  last checkpoint before them: {reading.checkpoint}; to go on from it, after the data flow:")
        lines.append(f"  python -m flows.pretrain --config {quote(f'{reading.run}/{GO_ON}')}")
    return lines


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
