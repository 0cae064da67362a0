"""Search for documents by id, URL or text, and counts by host and language."""

import re
import time
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.errors import UserError
from gpt2train.store.output import MERGED, FinishedStep
from gpt2train.store.rows import column_of, find_row, matches, read_row
from tasks.core.url_lists import hosts_of

Kind = Literal["id", "url", "text", "host"]
SOURCES = {name for names in MERGED for name in names}  # steps that have documents or pages of their own
MAX_HITS = 50
SECONDS = 1.0  # after which a search stops and says how far it came
MAX_QUERY = 500
EXCERPT = 160  # characters
MAX_COUNTED = 200  # hosts
ID = re.compile(r"[0-9a-f]{8,}")


def kind_of(query: str) -> Kind:
    """Kind of a query, by its form."""
    if ID.fullmatch(query):
        return "id"
    return "url" if re.fullmatch(r"\S*[./]\S*", query) else "text"


def search(steps: list[FinishedStep], query: str, kind: str, start: int = 0) -> dict[str, Any]:
    """Find documents, from file number `start` on, for about a second.

    Raises:
        UserError: the query is empty or too long, or no step has such a column.
    """
    query = query.strip()
    if not query or len(query) > MAX_QUERY:
        raise UserError(f"give 1 to {MAX_QUERY} characters of an id, a URL or a text")
    kind = kind_of(query) if kind == "auto" else kind
    if kind == "id" and (hit := _by_id(steps, query)):
        return {"kind": kind, "hits": [hit], "next": None, "share": 1.0}
    if kind not in ("id", "url", "text", "host"):
        raise ValueError(kind)
    return _scan(steps, query, kind, start)


def _by_id(steps: list[FinishedStep], identity: str) -> dict[str, Any] | None:
    for step in steps:
        for names in (step.outputs if "id" in step.columns() else [], step.rejected):
            if place := find_row(step.folder, names, "id", identity):
                return _hit(step, read_row(step.folder, place), "")
    return None


def _scan(steps: list[FinishedStep], query: str, kind: str, start: int) -> dict[str, Any]:
    """Search the column of the first step that has it, and of other sources; for ids and URLs all rejected rows too."""
    column = "url" if kind == "host" else kind
    whole = [step for step in steps if column in step.columns()]
    if not whole:
        raise UserError(f"no step of this output has a column {column}")
    sources = [step for step in whole if step is whole[0] or step.manifest.step in SOURCES]
    work = [(step, name) for step in sources for name in step.outputs]
    if kind != "text":
        work += [(step, name) for step in steps for name in step.rejected]
    ignore_case = kind == "text" and query == query.lower() and query.isascii()

    def test(values: pa.ChunkedArray) -> Any:
        if kind == "id":
            return pc.starts_with(values, query)
        if kind == "host":  # as `counts` has them
            return pc.equal(hosts_of(values), query.lower())
        return pc.match_substring(values, query, ignore_case=ignore_case)

    hits: dict[tuple[str, str], dict[str, Any]] = {}
    end = time.monotonic() + SECONDS
    at = start
    while at < len(work) and len(hits) < MAX_HITS and time.monotonic() < end:
        step = work[at][0]
        batch = [name for other, name in work[at : at + 8] if other is step]
        for rows in matches(step.folder, batch, column, test, ["id", "url", "title", "reason", "text"]):
            for row in rows:
                hit = _hit(step, row, query if kind == "text" else "")
                hits.setdefault((hit["id"], hit["url"]), hit)
        at += len(batch)
    found = list(hits.values())
    known = {hit["url"] for hit in found if hit["id"]}
    found = [hit for hit in found if hit["id"] or hit["url"] not in known]
    cut = len(found) > MAX_HITS
    return {"kind": kind, "hits": found[:MAX_HITS], "cut": cut, "next": at if at < len(work) else None,
            "share": at / max(1, len(work))}  # fmt: skip


def _hit(step: FinishedStep, row: dict[str, Any], query: str) -> dict[str, Any]:
    text = row.get("text") or ""
    at = max(0, text.lower().find(query.lower()) - EXCERPT // 3) if query else 0
    return {
        "id": row.get("id") or "",
        "url": row.get("url") or "",
        "title": row.get("title") or "",
        "step": step.name,
        "reason": row.get("reason"),
        "excerpt": ("…" if at else "") + text[at : at + EXCERPT],
    }


def counts(steps: list[FinishedStep], by: str) -> dict[str, Any]:
    """Count the documents of each step that has them by host or by language, the most frequent first."""
    column = {"host": "url", "language": "language"}[by]
    tables: dict[str, dict[str, int]] = {}
    for step in steps:
        columns = step.columns()
        if column not in columns or (by == "language" and "id" not in columns):
            continue
        table = column_of(step.folder, step.outputs, [column])
        if table is None:
            continue
        values = pc.fill_null(table[column], "")
        if by == "host":
            values = hosts_of(values)
        counted = pc.value_counts(pc.fill_null(values, "")).to_pylist()
        tables[step.name] = {item["values"] or "unknown": item["counts"] for item in counted}
    names = {name: max(found.get(name, 0) for found in tables.values()) for found in tables.values() for name in found}
    order = sorted(names, key=lambda name: (-names[name], name))
    rows = [[name, *(found.get(name, 0) for found in tables.values())] for name in order[:MAX_COUNTED]]
    return {"by": by, "steps": list(tables), "rows": rows, "more": max(0, len(order) - MAX_COUNTED)}
