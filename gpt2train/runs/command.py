"""The command `gpt2train runs`, which compares runs."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from gpt2train.errors import UserError
from gpt2train.runs.reading import Run, read_runs
from gpt2train.runs.table import Sort, differences, sort_runs, text
from gpt2train.store.files import write_atomic


def runs(
    *folders: Path,
    sort: Sort = "started",
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
    html: Path | None = None,
) -> None:
    """Compare runs by data, tokens, layout, loss, scores, hours, and differing settings.

    A run in progress is shown with its current state, a stopped one with its last step. A run folder that cannot be
    read is reported on standard error, and the others are shown.

    Parameters
    ----------
    folders
        Output folders, their runs/, or folders of single runs; all runs below them are shown. By default: out.
    sort
        Column to sort by; the best, greatest or earliest run comes first.
    json_
        Print JSON with all settings and results.
    html
        HTML file to write: one self-contained page with the table and the curves.
    """
    readable, unreadable = read_runs(folders or (Path("out"),))
    readable = sort_runs(readable, sort)
    for one in unreadable:
        print(f"warning: {one.reason}", file=sys.stderr)
    if not readable:
        raise UserError("none of the runs can be read")
    if html is not None:
        _check_page(html)
        from gpt2train.runs.page import render  # jinja2 takes 0.1 s

        write_atomic(html, render(readable).encode())
    if json_:
        document = {
            "runs": [as_json(run) for run in readable],
            "differences": differences(readable),
            "broken": [{"folder": str(one.folder), "reason": one.reason} for one in unreadable],
        }
        print(json.dumps(document, ensure_ascii=False, indent=1))
    else:
        print(text(readable))
    if html is not None:
        print(f"page: {html}", file=sys.stderr if json_ else sys.stdout)


def as_json(run: Run) -> dict[str, Any]:
    """Convert a run to JSON-serialisable values, without its rows, which are in its metrics.jsonl."""
    plain = asdict(run) | {"folder": str(run.folder), "record": run.record.model_dump(mode="json")}
    del plain["rows"]
    return plain


def _check_page(path: Path) -> None:
    """Check that a file may be written: it does not exist, or is an older page of runs.

    Raises:
        UserError: the path is a folder or another file.
    """
    from gpt2train.runs.page import MARK

    if path.is_dir():
        raise UserError(f"{path} is a folder; give --html FILE")
    if path.exists() and MARK.encode() not in path.read_bytes()[:2000]:
        raise UserError(f"{path} exists and is not a page of runs; give another --html FILE")
