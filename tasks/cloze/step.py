"""Evaluation set in the format of LAMBADA, drawn from the documents of the test split without a download.

Writes `evalset/cloze.jsonl`, `{"text": passage}` per line. A passage ends with the word to predict, without its full
stop, as in OpenAI's file of LAMBADA (Paperno et al. 2016). There passages have 31-180 words (median 58) in 3-8
sentences, and 83 % of the targets occur earlier in the passage. Here all do. `passages.parquet` has the source document
of each passage.

Texts in scripts without spaces between words (Chinese, Japanese, Thai) give passages without spaces, whose last
character is the target (`tasks/cloze/unspaced.py`).

Code and small corpora have no such passage. The step then succeeds without `cloze.jsonl`, and the run has no cloze
score unless the user gives a set.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.cloze.passages import passages
from tasks.cloze.settings import ClozeSettings
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, read_rows, read_table, rejected_row, write_rows
from tasks.core.step import Step
from tasks.decontaminate.ngrams import NgramIndex

CLOZE = "cloze.jsonl"
PASSAGES = pa.schema(
    [
        ("doc_id", pa.string()),
        ("url", pa.string()),
        ("start", pa.int32()),  # characters of the clean text
        ("end", pa.int32()),
        ("text", pa.large_string()),  # as in `Passage`
    ]
)
COPIES = pa.schema([("passage", pa.int32()), ("documents", pa.int32())])


def cloze(root: Folder, clean: Manifest, settings: ClozeSettings, runner: Runner) -> Manifest:
    """Draw the passages of `evalset/cloze.jsonl` from the documents of the test split.

    The counts of the manifest are of suitable passages; reasons: `duplicate`, `common_phrase`, `over_limit`. Without a
    passage the manifest has no output; `no_passages_message` gives the reason.
    """
    inputs = {"clean": clean}
    packages = ("unicodedata",)
    step = Step(root, "cloze", version=5, parameters=settings, inputs=inputs, folder="evalset", packages=packages)
    if done := runner.finished(step):
        return done
    source, parts = root / clean.folder, [record.name for record in clean.outputs]
    drawn = runner.batches(step, "draw", parts, draw_passages, source, settings)
    found = [row for outcome in drawn for record in outcome.audit for row in read_rows(step.folder, record.name)]
    facts = {"documents": sum(outcome.facts["documents"] for outcome in drawn)}
    if not found:
        return step.commit(Outcome(facts=facts))
    candidates = write_rows(step.folder, "candidates.parquet", found, PASSAGES)
    counted = runner.batches(step, "copies", parts, copies_part, source, candidates)
    copies: Counter[int] = Counter()
    for outcome in counted:
        for record in outcome.audit:
            copies.update({row["passage"]: row["documents"] for row in read_rows(step.folder, record.name)})
    chosen, left = choose(found, copies, settings)
    lines = "".join(json.dumps({"text": row["text"]}, ensure_ascii=False) + "\n" for row in chosen)
    if chosen:
        step.folder.write_bytes(CLOZE, lines.encode())
    outcome = Outcome(
        outputs=(step.folder.record(CLOZE, rows=len(chosen)),) if chosen else (),
        rejected=(write_rows(step.folder, "rejected/passages.parquet", left, REJECTED),) if left else (),
        audit=(write_rows(step.folder, "passages.parquet", chosen, PASSAGES),),
        seen=len(found),
        kept=len(chosen),
        reasons=dict(sorted(Counter(row["reason"] for row in left).items())),
        facts=facts,
    )
    return step.commit(outcome)


def draw_passages(folder: Folder, name: str, part: str, source: Folder, settings: ClozeSettings) -> Outcome:
    """Find the passages of one part's test documents; runs in a worker."""
    rows: list[dict[str, Any]] = []
    documents = 0
    for row in read_rows(source, part, ["id", "url", "text", "split"]):
        if row["split"] == "test":
            documents += 1
            for passage in passages(row["text"], settings.min_words, settings.max_words):
                rows.append({"doc_id": row["id"], "url": row["url"], **passage._asdict()})
    return Outcome(audit=(write_rows(folder, f"draw/{name}.parquet", rows, PASSAGES),), facts={"documents": documents})


def copies_part(folder: Folder, name: str, part: str, source: Folder, candidates: FileRecord) -> Outcome:
    """Count the documents of one part outside the test split that share an n-gram with each candidate; in a worker."""
    index = _index(folder.url, candidates.name, candidates.sha256)
    documents: Counter[int] = Counter()
    for row in read_rows(source, part, ["text", "split"]):
        if row["split"] != "test":
            documents.update({p for match in index.matches(row["text"]) for p in index.sources(match.gram)})
    rows = [{"passage": passage, "documents": count} for passage, count in sorted(documents.items())]
    return Outcome(audit=(write_rows(folder, f"copies/{name}.parquet", rows, COPIES),))


@functools.lru_cache(maxsize=1)
def _index(url: str, name: str, sha256: str) -> NgramIndex:
    return NgramIndex(read_table(Folder(url), name, ["text"])["text"].to_pylist())


def choose(
    found: Sequence[dict[str, Any]], copies: Counter[int], settings: ClozeSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Choose passages in the order of a seeded hash of their text, independent of their order in the files.

    Args:
        found: rows of all suitable passages.
        copies: number of documents outside the test split that share an n-gram with each passage, by its index.
        settings: limits and seed.

    Returns:
        The chosen rows, and rejected rows for the others.
    """
    key = settings.seed.to_bytes(8, "little")
    chosen: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    texts: set[str] = set()
    of_document: Counter[str] = Counter()
    ranked = sorted(
        (hashlib.blake2b(row["text"].encode(), digest_size=16, key=key).digest(), row["url"], row["start"], number)
        for number, row in enumerate(found)
    )
    for *_, number in ranked:
        row = found[number]
        reason, detail = "", ""
        if row["text"] in texts:
            reason, detail = "duplicate", "the same passage of another document was chosen"
        elif copies[number] > settings.max_copies:
            reason, detail = "common_phrase", f"in {copies[number]} documents, at most {settings.max_copies} expected"
        elif of_document[row["doc_id"]] >= settings.per_document:
            reason, detail = "over_limit", f"{settings.per_document} passages of the document were chosen"
        elif len(chosen) >= settings.max_passages:
            reason, detail = "over_limit", f"the set has {settings.max_passages} passages"
        if reason:
            left.append(rejected_row({**row, "id": row["doc_id"]}, reason, detail))
            continue
        chosen.append(row)
        texts.add(row["text"])
        of_document[row["doc_id"]] += 1
    return chosen, left


def cloze_file(root: Folder, manifest: Manifest) -> str | None:
    """Path of the passages that the step wrote; None if it found none."""
    return (root / manifest.folder).location(CLOZE) if manifest.outputs else None


def no_passages_message(manifest: Manifest) -> str:
    """Message for a manifest without passages: reason, consequence and remedy."""
    outcome = manifest.outcome
    reason = f"no cloze passage in the {outcome.facts.get('documents', 0):,} test documents"
    if outcome.seen:
        reason = f"each of the {outcome.seen:,} cloze passages of the test documents is a common phrase"
    return (
        f"{reason}: the run continues without a cloze score; for one, give more documents of prose, a larger "
        "clean.split.test, or --lambada FILE"
    )
