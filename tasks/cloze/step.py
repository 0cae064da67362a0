"""Evaluation set in the format of LAMBADA, drawn from the documents of the test split without a download.

Writes `evalset/cloze.jsonl`, `{"text": passage}` per line. A passage ends with the word to predict, without its full
stop, as in OpenAI's file of LAMBADA (Paperno et al. 2016). There passages have 31-180 words (median 58) in 3-8
sentences, and 83 % of the targets occur earlier in the passage. Here all do. `passages.parquet` has the source document
of each passage.

The corpus may contain code as well as prose. A passage is a run of prose sentences: each begins with a capital, ends
with a full stop and has few words that are not plain.

Code, texts in other scripts and small corpora have no such passage. The step then succeeds without `cloze.jsonl`, and
the run has no LAMBADA score unless the user gives a set.
"""

import functools
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.cloze.settings import ClozeSettings
from tasks.core.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, read_rows, read_table, rejected_row, write_rows
from tasks.core.step import Step
from tasks.core.storage import FileRecord, Folder
from tasks.decontaminate.ngrams import NgramIndex

CLOZE = "cloze.jsonl"
PASSAGES = pa.schema(
    [
        ("doc_id", pa.string()),
        ("url", pa.string()),
        ("start", pa.int32()),  # characters of the clean text
        ("end", pa.int32()),
        ("text", pa.large_string()),  # white space as single spaces, without the last full stop
    ]
)
COPIES = pa.schema([("passage", pa.int32()), ("documents", pa.int32())])

TOKEN = re.compile(r"\S+")
# A plain word or number with its punctuation, or a dash.
PLAIN_WORD = re.compile(
    r"[\"'“‘(]*(?:[A-Za-z]+(?:['’/-][A-Za-z]+)*|\d+(?:[.,]\d+)*%?)[\"'”’)]*[,;:.!?]*[\"'”’)]*|--|–|—|e\.g\.,?|i\.e\.,?"
)
# Tokens that do not occur in prose: tables, rules, operators, markup, dunder names, signatures, bullets, endless words.
NOT_PROSE = re.compile(r".*(?:[|=<>{}\\#@~^]|->|::|\.\.\.|__|---|\w\([^)]).*|[-•+·*]|async|def|class|\S{50,}")
SENTENCE_END = re.compile(r".*[.!?][\"'”’)]*")
ABBREVIATION = re.compile(r"[\"'“(]*(?:e\.g|i\.e|etc|vs|cf|[Dd]r|[Mm]rs?|[Ff]ig|[Nn]o|[Ss]t)\.", re.ASCII)
OPENING = re.compile(r"[\"'“‘(]*[A-Z].*", re.DOTALL)
TARGET = re.compile(r"([A-Za-z]{4,})[.!?]")  # most words of at most three letters are function words
MAX_ODD_SHARE = 0.25  # maximum share of words in a sentence that are not plain, e.g. ``names`` of code
MAX_HEADING = (
    60  # characters; a line that ends without punctuation before a capital is a heading, longer ones are prose
)
SENTENCE_WORDS = (3, 50)  # minimum and maximum words of a sentence


def cloze(root: Folder, clean: Manifest, settings: ClozeSettings, runner: Runner) -> Manifest:
    """Draw the passages of `evalset/cloze.jsonl` from the documents of the test split.

    The counts of the manifest are of suitable passages; reasons: `duplicate`, `common_phrase`, `over_limit`. Without a
    passage the manifest has no output; `no_passages_message` gives the reason.
    """
    inputs = {"clean": clean}
    packages = ("unicodedata",)
    step = Step(root, "cloze", version=3, parameters=settings, inputs=inputs, folder="evalset", packages=packages)
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


class Passage(NamedTuple):
    """Passage with its span of characters in the document; `text` has single spaces and no final full stop."""

    start: int
    end: int
    text: str


def passages(text: str, min_words: int, max_words: int) -> Iterator[Passage]:
    """Non-overlapping passages of a text from left to right; each is the shortest suitable run of sentences."""
    for run in prose_runs(text):
        first = 0
        while first < len(run):
            words: list[str] = []
            for last in range(first, len(run)):
                words += text[run[last][0] : run[last][1]].split()
                if len(words) > max_words:
                    first += 1
                    break
                if len(words) >= min_words and is_cloze(words):
                    passage = " ".join(words)
                    yield Passage(run[first][0], run[last][1], passage[:-1])
                    first = last + 1
                    break
            else:
                first += 1


def is_cloze(words: Sequence[str]) -> bool:
    """Returns True if the last word is a target: letters, a full stop, and an earlier occurrence in the passage."""
    target = TARGET.fullmatch(words[-1])
    if target is None:
        return False
    target_word = target.group(1).lower()
    return any(target_word in re.findall(r"[a-z]+", word.lower()) for word in words[:-1])


def prose_runs(text: str) -> list[list[tuple[int, int]]]:
    """Runs of consecutive prose sentences; each sentence as its (start, end) in the text."""
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    number, start, odd, count = 0, -1, 0, 0
    tokens = list(TOKEN.finditer(text))
    for index, found in enumerate(tokens):
        token = found.group()
        if NOT_PROSE.fullmatch(token):
            number, start = number + 1, -1  # neither this sentence nor one that spans the token is prose
            continue
        if start < 0:
            start, odd, count = found.start(), 0, 0
        count += 1
        odd += PLAIN_WORD.fullmatch(token) is None
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        opens = following is None or OPENING.fullmatch(following.group()) or NOT_PROSE.fullmatch(following.group())
        if SENTENCE_END.fullmatch(token) and opens and not ABBREVIATION.fullmatch(token):
            sentence = text[start : found.end()]
            if SENTENCE_WORDS[0] <= count <= SENTENCE_WORDS[1] and odd <= MAX_ODD_SHARE * count and is_whole(sentence):
                runs[number].append((start, found.end()))
            else:
                number += 1
            start = -1
        elif following is not None and opens and "\n" in text[found.end() : following.start()]:
            line = found.end() - (text.rfind("\n", 0, found.end()) + 1)
            if line <= MAX_HEADING and token[-1] not in ",;:":
                number, start = number + 1, -1
    return [runs[key] for key in sorted(runs)]


def is_whole(sentence: str) -> bool:
    """Returns True if a sentence begins with a capital and has balanced brackets and quotes."""
    return OPENING.match(sentence) is not None and all(
        sentence.count(left) == sentence.count(right) for left, right in ("()", "[]", "“”")
    )


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
        f"{reason}: the run continues without a LAMBADA score; for one, give more documents of English prose, a larger "
        "clean.split.test, or --lambada FILE"
    )
