"""Way of one document through the steps: kept, rejected or unknown in each, its duplicates, its tokens and samples."""

import contextlib
from typing import Any

import pyarrow.compute as pc

from gpt2train.errors import RunError, UserError
from gpt2train.store.output import FinishedStep
from gpt2train.store.rows import Place, Row, find_row, matches, read_row
from tasks.outputs.browse.page_account import accounted_step
from tasks.outputs.browse.samples import Runs

MAX_TEXT = 200_000  # characters that are sent of a text
MAX_MEMBERS = 50  # of a cluster
SHOWN = ("title", "date", "language", "language_share", "language_hint", "source", "tokens", "split")
LEDGER = ("final_url", "http_status", "content_type", "bytes", "fetched_at", "attempts")


def way_of(steps: list[FinishedStep], runs: Runs, identity: str, url: str) -> Row:
    """Follow a document by its id through the steps, and by its URL through those before its extraction.

    Raises:
        UserError: no step has it.
    """
    identity, url = _resolve(steps, identity, url)
    stages: list[Row] = []
    clusters, explained = 0, accounted_step(steps)
    tokens: list[Row] = []
    duplicates: list[Row] = []
    before: str | None = None
    hint = ""
    facts: Row = {}
    for step in steps:
        try:
            columns = step.columns()
            found, row = _stage(step, columns, identity, url, hint)
            if step is explained and row:
                found["explained"] = True
            hint = found.get("file") or hint
            if row and (text := row.get("text")) is not None and found["result"] == "kept":
                found |= {"characters": len(text), "changed": before is not None and text != before}
                before = text
            if "facts" in found:  # what an earlier step has said is not repeated
                found["facts"] = {name: value for name, value in found["facts"].items() if facts.get(name) != value}
                facts |= found["facts"]
            clusters += bool(step.audit("clusters"))
            duplicates += _duplicates(step, identity)
            if step.name == "tokens":
                tokens = _tokens(step, runs, identity)
                found["result"] = "kept" if tokens else "absent"
        except (RunError, FileNotFoundError) as error:
            found = {"step": step.name, "result": "unknown", "detail": str(error)}
        if found["result"] != "other":
            stages.append(found)
    if not any(stage["result"] in ("kept", "rejected") for stage in stages):
        raise UserError(f"no step of this output has a document {identity or url}; look for a part of its URL or text")
    _explain(stages)
    return {"id": identity, "url": url, "stages": stages, "tokens": tokens, "duplicates": duplicates,
            "knows_duplicates": clusters > 0}  # fmt: skip


def _resolve(steps: list[FinishedStep], identity: str, url: str) -> tuple[str, str]:
    """Id and URL of a document of which one is given; the other stays empty if no file has it."""
    key, value, other = ("id", identity, "url") if identity else ("url", url, "id")
    if (identity and url) or not value:
        return identity, url
    for step in steps:
        with contextlib.suppress(RunError, FileNotFoundError):
            for names in (step.outputs if {"id", "url"} <= set(step.columns()) else [], step.rejected):
                if place := find_row(step.folder, names, key, value):
                    row = read_row(step.folder, place)
                    if row[other]:
                        return row["id"], row["url"]
    return identity, url


def _stage(step: FinishedStep, columns: list[str], identity: str, url: str, hint: str) -> tuple[Row, Row | None]:
    """Result of one step, and the row of the document in its files."""
    found: Row = {"step": step.name, "result": "absent"}
    if step.manifest.step == "download":
        return found | _fetched(step, url), None
    if step.name == "tokens":
        return found, None
    stage = step.stage(columns, identity, url, hint)
    found["result"] = stage.result
    if stage.row is None or stage.place is None:
        return found, None
    if stage.result == "kept":
        return found | _facts(stage.row, stage.place, SHOWN), stage.row
    return found | _facts(stage.row, stage.place, ()) | _reason(stage.row), stage.row


def _fetched(step: FinishedStep, url: str) -> Row:
    """Result of the download, from its ledger."""
    ledger = step.audit("ledger")
    if not url or not ledger:
        missing = "it is looked up by URL, which is unknown" if ledger else "this output has no ledger"
        return {"result": "unknown", "detail": missing}
    if not (place := find_row(step.folder, ledger, "url", url)):
        return {}
    row = read_row(step.folder, place)
    return {"result": "kept" if row.get("status") == "ok" else "rejected"} | _facts(row, place, LEDGER) | _reason(row)


def _facts(row: Row, place: Place, names: tuple[str, ...]) -> Row:
    facts = {name: _plain(row[name]) for name in names if row.get(name) is not None}
    return {"file": place.file, "row": place.number, "facts": facts}


def _reason(row: Row) -> Row:
    return {"reason": row.get("reason"), "detail": row.get("detail") or ""}


def _explain(stages: list[Row]) -> None:
    """Say for steps without the document why: it was rejected before, or nothing is known."""
    gone: str | None = None
    for stage in stages:
        if stage["result"] == "absent":
            why = f"rejected before, by {gone}" if gone else "not in the files of this step, and no reason is recorded"
            stage |= {"result": "not reached" if gone else "unknown", "detail": why}
        elif stage["result"] == "rejected":
            gone = stage["step"]


def _duplicates(step: FinishedStep, identity: str) -> list[Row]:
    """Other members of the document's cluster, the kept ones first."""
    names = step.audit("clusters")
    if not names or not identity or not (place := find_row(step.folder, names, "id", identity)):
        return []
    own = read_row(step.folder, place)
    wanted = ["id", "url", "reason", "kept_id", "jaccard", "earlier"]
    rows: list[Row] = []
    for found in matches(step.folder, names, "cluster", lambda c: pc.equal(c, own["cluster"]), wanted):
        rows += found
    rows = [row for row in rows if row["id"] != identity]
    kept = own["kept_id"]
    rows.sort(key=lambda row: (row["id"] != kept, row["reason"] is not None, -(row["jaccard"] or 0), row["id"]))
    return [{**row, "is_keeper": row["id"] == kept, "members": len(rows) + 1} for row in rows[:MAX_MEMBERS]]


def _tokens(step: FinishedStep, runs: Runs, identity: str) -> list[Row]:
    """Token range of the document in each split, with the samples of the runs."""
    found = []
    for split in ("train", "valid", "test"):
        names = [name for name in step.outputs if name.startswith(f"{split}/documents")]
        if identity and (place := find_row(step.folder, names, "doc_id", identity)):
            row = read_row(step.folder, place)
            samples = runs.samples(step, split, row["start"], row["end"])
            found.append({"split": split, "start": row["start"], "end": row["end"], "runs": samples})
    return found


def text_of(steps: list[FinishedStep], step_name: str, identity: str) -> Row:
    """Text of a document as a step wrote it; for a rejected one, as the step before did.

    Raises:
        UserError: no file has it.
    """
    names = [step.name for step in steps]
    last = names.index(step_name) if step_name in names else len(steps) - 1
    for step in reversed(steps[: last + 1]):
        with contextlib.suppress(RunError, FileNotFoundError):
            if {"id", "text"} <= set(step.columns()) and (place := find_row(step.folder, step.outputs, "id", identity)):
                text, cut = read_row(step.folder, place)["text"], MAX_TEXT
                return {"step": step.name, "text": text[:cut], "characters": len(text), "cut": len(text) > cut}
    raise UserError(f"the text of {identity} is in no file of {step_name or 'the output'} or of the steps before it")


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)
