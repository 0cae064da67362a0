"""Checks of a step without doing it again: its manifest, the hashes of its files, and the steps that it read."""

import concurrent.futures
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, digest, fingerprint, version_differences, versions_of
from gpt2train.store.output import IDENTITY, Output
from tasks.download.shard_writer import content_of, ledgers_of

TABLES = (".parquet", ".warc.gz")  # files whose rows or pages are what a step keeps
WIDTHS = (2, 4)  # bytes of a token
RUNS = ("runs/", "task/")  # steps that may read another output
MAX_CONCURRENT = 4  # files that are hashed at a time


@dataclass
class Finding:
    """Result for one step."""

    step: str
    folder: str
    files: int = 0
    bytes: int = 0  # of its files
    redone: str = ""  # what was done again: `3 of 12 batches`, `whole`; empty if nothing was
    problems: list[str] = field(default_factory=list)  # differences
    notes: list[str] = field(default_factory=list)  # what could not be checked, and why
    damaged: list[str] = field(default_factory=list)  # names of the files that are missing or differ from the manifest


def check_records(output: Output, folder: str, manifest: Manifest, accept: bool) -> Finding:
    """Check the manifest of a step, its files and its inputs; `accept` makes other packages a note."""
    records = manifest.outcome.files
    finding = Finding(manifest.step, folder, len(records), sum(record.bytes for record in records))
    finding.problems += _manifest_problems(output, manifest)
    if manifest.fingerprint == _fingerprint(manifest, known=False) and manifest.versions:
        finding.notes.append("packages unknown: made by a release whose fingerprints do not have them")
    else:
        here = versions_of(manifest.versions)
        if here != manifest.versions:
            message = f"made with {version_differences(manifest.versions, here)}"
            (finding.notes if accept else finding.problems).append(message)
    with concurrent.futures.ThreadPoolExecutor(MAX_CONCURRENT) as executor:
        where = output.root / manifest.folder
        problems = executor.map(lambda record: _file_problem(where, record), records)
        for record, problem in zip(records, problems, strict=True):
            if problem:
                finding.problems.append(f"{manifest.folder}/{record.name}: {problem}")
                finding.damaged.append(record.name)
    for name, identity in manifest.inputs.items():
        if IDENTITY.fullmatch(identity) and output.find(identity) is None:
            message = f"input {name!r}: no step of this output has the identity {identity[:12]}… that it read"
            elsewhere = folder.startswith(RUNS) or name.startswith("earlier_")
            (finding.notes if elsewhere else finding.problems).append(message)
    return finding


def _fingerprint(manifest: Manifest, known: bool) -> str:
    versions = manifest.versions if known else {}
    return fingerprint(manifest.step, manifest.version, manifest.parameters, manifest.inputs, versions)


def _manifest_problems(output: Output, manifest: Manifest) -> Iterator[str]:
    """Contradictions within a manifest."""
    if manifest.fingerprint not in (_fingerprint(manifest, known=True), _fingerprint(manifest, known=False)):
        yield "its manifest was changed: step, version, parameters, inputs and versions do not give its fingerprint"
    outcome = manifest.outcome
    contents = [digest([[record.name, record.sha256] for record in outcome.outputs]), digest(manifest.inputs)]
    if manifest.content not in contents and manifest.content not in _contents_of_download(output, manifest):
        yield "its manifest was changed: the hashes of its outputs do not give its content"
    yield from _count_problems(manifest)
    rows = [record.rows for record in outcome.rejected if record.rows is not None]
    dropped = sum(outcome.reasons.values())
    if len(rows) == len(outcome.rejected) and sum(rows) != dropped:
        yield f"its manifest counts {dropped:,} rejected rows, its files of rejected rows have {sum(rows):,}"


def _contents_of_download(output: Output, manifest: Manifest) -> Iterator[str]:
    """Content of a download, of this release and of older ones; none for another step.

    It is that of its pages and ledgers without what the clock decides.
    """
    if manifest.step == "download":
        with contextlib.suppress(OSError, ValueError, LookupError):  # a damaged ledger, which its hash shows
            for has_languages in (True, False):
                yield content_of(output.root / manifest.folder, ledgers_of(manifest.outcome.audit), has_languages)


def _file_problem(folder: Folder, record: FileRecord) -> str | None:
    """Difference of a file from its record, else None."""
    try:
        found = folder.record(record.name)
    except FileNotFoundError:
        return "missing"
    if found.bytes != record.bytes:
        return f"{found.bytes:,} bytes, {record.bytes:,} in the manifest"
    if found.sha256 != record.sha256:
        return "its hash is not that of the manifest"
    if record.rows is not None and record.name.endswith(".parquet"):
        with folder.open(record.name) as file:
            rows = pq.ParquetFile(file).metadata.num_rows
        if rows != record.rows:
            return f"{count_of(rows, 'row')}, {record.rows:,} in the manifest"
    return None


def _count_problems(manifest: Manifest) -> Iterator[str]:
    """Yield the contradictions between the counts of a manifest, which cards, reports and the passport show."""
    outcome = manifest.outcome
    if manifest.step == "tokenize":
        yield from _token_problems(manifest)
    rows = [one.rows for one in outcome.outputs if one.rows is not None and one.name.endswith(TABLES)]
    if not rows or len(rows) < len(outcome.outputs):
        return
    dropped = sum(outcome.reasons.values())
    if outcome.kept != sum(rows):
        yield f"its manifest counts {outcome.kept:,} kept rows, its outputs have {sum(rows):,}"
    if outcome.seen != outcome.kept + dropped:
        yield f"its manifest counts {count_of(outcome.seen, 'row')}, {outcome.kept:,} kept and {dropped:,} dropped"


def _token_problems(manifest: Manifest) -> Iterator[str]:
    found: Counter[str] = Counter()
    for record in manifest.outcome.outputs:
        split, _, name = record.name.partition("/")
        if name.endswith(".bin"):
            found[f"{split}_tokens"] += record.rows or 0
            if record.rows and record.bytes not in [record.rows * width for width in WIDTHS]:
                yield f"{record.name}: {record.rows:,} tokens in the manifest, which do not give {record.bytes:,} bytes"
        elif name.endswith(".parquet"):
            found[f"{split}_documents"] += record.rows or 0
    for name, stated in manifest.outcome.facts.items():
        if name in found and stated != found[name]:
            yield f"its manifest states {name}: {stated:,}, its files have {found[name]:,}"
