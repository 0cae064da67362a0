"""Rewriting of the steps that take pages from outside: their files without the removed pages, and their manifests.

Nothing is fetched or read again. In place of each row there is a rejected row with the reason `forgotten`. Every file
is replaced atomically and depends on itself alone, so that an interrupted rewriting is repeated from its beginning.
Until the manifest is replaced, the last of all, it does not fit to the files: no flow begins meanwhile.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest, Outcome, digest, fingerprint, need_manifest
from tasks.core.forgotten import REASON, URL_COLUMNS, Forgotten, name_of
from tasks.core.shards import REJECTED, read_table, rejected_row, write_table
from tasks.download.host_stats import CONSENT_FILE, HOSTS_FILE, signal_counts, tally_hosts, tally_signals
from tasks.download.journal import clear_journals
from tasks.download.ledger import content_of, counts_of, ledgers_of, without_forgotten
from tasks.outputs.forget.archives import copy_without
from tasks.outputs.forget.decode import TEXT_COLUMNS
from tasks.outputs.forget.scan import Searcher
from tasks.sources.index import PLACES, read_pages

Links = Mapping[str, str]  # name of an input -> folder of the step whose manifest it is


def rewrite_step(
    root: Folder,
    made: Manifest,
    forgotten: Forgotten,
    links: Links,
    remember: Callable[[dict[str, str]], None] | None = None,
) -> None:
    """Rewrite a step. `remember` gets the new hash of each changed output -> the old one, before the manifest."""
    folder = root / made.folder
    clear_journals(folder)
    outcome = (_download if made.step == "download" else _others)(folder, made, forgotten)
    inputs = {name: identity for name, identity in made.inputs.items() if name != "forgotten"}
    linked = {name: need_manifest(root / source).identity for name, source in links.items()}
    inputs |= {name: identity for name, identity in linked.items() if name in inputs}
    read = made.read | {name: identity for name, identity in linked.items() if name in made.read}
    if "forgotten" in made.inputs or made.step not in ("download", "commoncrawl"):  # those two follow from others
        inputs |= forgotten.inputs
    known = made.fingerprint == fingerprint(made.step, made.version, made.parameters, made.inputs, made.versions)
    new = fingerprint(made.step, made.version, made.parameters, inputs, made.versions if known else {})
    content = digest([[record.name, record.sha256] for record in outcome.outputs])
    if made.step == "download":
        content = content_of(folder, ledgers_of(outcome.audit))
    old = {record.name: record.sha256 for record in made.outputs}
    changed = {one.sha256: old[one.name] for one in outcome.outputs if old.get(one.name, one.sha256) != one.sha256}
    if remember is not None and changed:
        remember(changed)
    update = {"fingerprint": new, "content": content, "inputs": inputs, "outcome": outcome, "read": read}
    manifest = made.model_copy(update=update)
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
    folder.write_bytes(MANIFEST, text.encode() + b"\n")
    named = {MANIFEST, *(record.name for record in outcome.files)}
    # Batches of an unfinished retry, files of killed runs: the rows of a page may be in them too.
    folder.remove(*(name for name in folder.files() if name not in named and not name.startswith(f"{PLACES}/")))


def _download(folder: Folder, made: Manifest, forgotten: Forgotten) -> Outcome:
    """Rewrite archives, ledgers, rejected rows and the tables made of the ledgers."""
    outputs = [copy_without(folder, record.name, forgotten) for record in made.outputs]
    audit, rejected, counts = [], [], []
    consent: dict[str, int] = {}
    for record in ledgers_of(made.outcome.audit):
        before = read_table(folder, record.name)
        table = pa.Table.from_pylist(without_forgotten(before.to_pylist(), forgotten), schema=before.schema)
        audit.append(_replace(folder, record.name, scrubbed(table, forgotten)))
        rows = read_table(folder, record.name).to_pylist()
        counts.append(counts_of(rows))
        dropped = [rejected_row(row, row["reason"], row["detail"]) for row in rows if row["reason"]]
        if dropped:
            name = record.name.replace("ledger/", "rejected/", 1)
            rejected.append(_replace(folder, name, pa.Table.from_pylist(dropped, schema=REJECTED)))
    ledgers = tuple(audit)
    for record in made.outcome.audit:
        if record.name.startswith(HOSTS_FILE):
            audit.append(_replace(folder, record.name, tally_hosts(folder, ledgers)))
        elif record.name.startswith(CONSENT_FILE):
            table = tally_signals(folder, ledgers)
            consent = signal_counts(table)
            audit.append(_replace(folder, record.name, table))
    total = Outcome.total(counts)
    facts = dict(sorted((total.facts | consent).items()))
    files = {"outputs": tuple(outputs), "audit": tuple(audit), "rejected": tuple(rejected), "facts": facts}
    return total.model_copy(update=files)


def _others(folder: Folder, made: Manifest, forgotten: Forgotten) -> Outcome:
    """Rewrite tables of URLs, pages or documents, or the archives of Common Crawl, and their rejected rows."""
    rejected = {record.name: record for record in made.outcome.rejected}
    outputs: list[FileRecord] = []
    beside: list[str] = []
    for record in made.outputs:
        gone = _removed_names(folder, record.name, forgotten)
        beside.append(name := f"rejected/{record.name.replace('.warc.gz', '.parquet')}")
        # First: a kill between the two must not lose the reason. After one, this file has it, and no manifest names it.
        if gone or name in rejected or folder.size(name) is not None:
            rejected[name] = _reject(folder, name, gone, forgotten, name in rejected)
        if record.name.endswith(".warc.gz"):
            outputs.append(copy_without(folder, record.name, forgotten))
        else:
            outputs.append(_replace(folder, record.name, _without(read_table(folder, record.name), forgotten)))
    for name in sorted(rejected.keys() - beside):
        rejected[name] = _reject(folder, name, [], forgotten, True)
    records = tuple(rejected[name] for name in sorted(rejected) if rejected[name].rows)
    folder.remove(*(name for name in rejected if not rejected[name].rows))
    kept = sum(record.rows or 0 for record in outputs)
    reasons = _reasons(folder, made, records)
    return made.outcome.model_copy(
        update={
            "outputs": tuple(outputs),
            "rejected": records,
            "seen": kept + sum(reasons.values()),
            "kept": kept,
            "reasons": reasons,
            "facts": made.outcome.facts | _facts(folder, made, outputs),
        }
    )


def _reasons(folder: Folder, made: Manifest, records: tuple[FileRecord, ...]) -> dict[str, int]:
    """Count the rejected rows by reason; those that a step has only counted stay as they were."""
    found: Counter[str] = Counter()
    for record in records:
        found.update(read_table(folder, record.name, ["reason"])["reason"].to_pylist())
    listed = sum(record.rows or 0 for record in made.outcome.rejected)
    if listed != sum(made.outcome.reasons.values()):
        found = Counter(made.outcome.reasons | {REASON: found[REASON]})
    return {reason: count for reason, count in sorted(found.items()) if count}


def _facts(folder: Folder, made: Manifest, outputs: list[FileRecord]) -> dict[str, int]:
    """Sum the sizes anew that a step states."""
    names = [record.name for record in outputs]
    if made.step == "texts":
        lengths = [pc.sum(pc.utf8_length(read_table(folder, name, ["text"])["text"])).as_py() for name in names]
        return {"characters": sum(length or 0 for length in lengths)}
    if made.step in ("warcs", "webpages"):
        return {"bytes": sum(pc.sum(read_table(folder, name, ["bytes"])["bytes"]).as_py() or 0 for name in names)}
    if made.step == "commoncrawl":
        return {"bytes": sum(len(page.body) for name in names for page in read_pages(folder, name))}
    captures = sum(record.rows or 0 for record in outputs if record.name.startswith("captures/"))
    return {"captures": captures} if "captures" in made.outcome.facts else {}


def _removed_names(folder: Folder, name: str, forgotten: Forgotten) -> list[tuple[str, str | None]]:
    """Name and source of each row that an output loses."""
    if name.endswith(".warc.gz"):
        pages = (page for page in read_pages(folder, name) if forgotten.matches(page.url, page.final_url))
        return [(name_of(page.url), None) for page in pages]
    rows = read_table(folder, name)
    columns = [column for column in (*URL_COLUMNS, "source") if column in rows.schema.names]
    return [
        (name_of(row["url"]), row.get("source"))
        for row in rows.select(columns).to_pylist()
        if forgotten.matches_row(row)
    ]


def _reject(
    folder: Folder, name: str, gone: list[tuple[str, str | None]], forgotten: Forgotten, exists: bool
) -> FileRecord:
    """Strip the rows of forgotten pages in a file of rejected rows, and add those that are not in it yet."""
    rows = read_table(folder, name).to_pylist() if exists or folder.size(name) is not None else []
    rows = rows if exists else [row for row in rows if row["reason"] == REASON]  # others are left from another run
    stripped = [_stripped(row) if forgotten.matches_row(row) else row for row in rows]
    known = Counter(row["url"] for row in stripped if row["reason"] == REASON)
    for url, source in gone:
        known[url] -= 1
        if known[url] < 0:  # else it was added before a kill
            stripped.append(_stripped({"url": url, "source": source}))
    for row in stripped:
        # The name of a list may be that of a removed domain, as of those that the discovery writes.
        source = row["source"]
        if source and (forgotten.matches(source) or forgotten.matches_host(source.rpartition("/")[2])):
            row["source"] = None
    return _replace(folder, name, scrubbed(pa.Table.from_pylist(stripped, schema=REJECTED), forgotten))


def _stripped(row: Mapping[str, Any]) -> dict[str, Any]:
    return rejected_row({"url": name_of(row["url"]), "source": row["source"]}, REASON)


def _without(table: pa.Table, forgotten: Forgotten) -> pa.Table:
    """Return a table without the rows of forgotten pages; other URLs do not name them as their origin."""
    columns = [name for name in URL_COLUMNS if name in table.schema.names]
    kept = [not forgotten.matches_row(row) for row in table.select(columns).to_pylist()] if columns else []
    table = table.filter(pa.array(kept, pa.bool_())) if columns else table
    if "found_in" in table.schema.names:
        shown = [name_of(url) if forgotten.matches(url) else url for url in table["found_in"].to_pylist()]
        table = table.set_column(
            table.schema.get_field_index("found_in"), table.schema.field("found_in"), pa.array(shown, pa.string())
        )
    return scrubbed(table, forgotten)


def scrubbed(table: pa.Table, forgotten: Forgotten) -> pa.Table:
    """Return a table whose rows do not mention forgotten pages outside of the text of their own page.

    Such are the links to licenses in a ledger, and the details of rejected rows.
    """
    searcher = Searcher(forgotten, forgotten, [])
    for number, field in enumerate(table.schema):
        if field.name in (*URL_COLUMNS, *TEXT_COLUMNS, "source"):
            continue
        is_text = pa.types.is_string(field.type)
        is_texts = pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type)
        values = table[field.name].to_pylist() if is_text or is_texts else []
        clean = [_without_mention(value, searcher, field.nullable) for value in values]
        if clean != values:
            table = table.set_column(number, field, pa.array(clean, field.type))
    return table


def _without_mention(value: Any, searcher: Searcher, nullable: bool) -> Any:
    if isinstance(value, list):
        return [one for one in value if not (one and searcher.address([one]))]
    if value and searcher.address([value]):
        return None if nullable else ""
    return value


def _replace(folder: Folder, name: str, table: pa.Table) -> FileRecord:
    """Write a table, as the steps write it, unless the file has it already."""
    if folder.size(name) is not None and read_table(folder, name).equals(table):
        return folder.record(name, rows=table.num_rows)
    return write_table(folder, name, table.combine_chunks())
