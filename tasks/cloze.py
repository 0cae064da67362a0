"""An evaluation set in LAMBADA's format, drawn from the held-out test documents; no download needed.

`evalset/cloze.jsonl`: `{"text": passage}` a line, the passage ending in the word to guess, without its full stop, as in
OpenAI's file of LAMBADA (Paperno et al. 2016): there passages have 31-180 words, 58 in the middle, in 3-8 sentences,
and 83 % of the targets occur earlier in the passage. Here all do. `passages.parquet` says where each comes from.

The corpus may hold code and signatures as well as prose. A passage is a run of prose sentences: each begins with a
capital, ends in a full stop and consists of plain words but for a few.
"""

import functools
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pydantic import Field, model_validator

from gpt2train.errors import RunError
from gpt2train.settings import Settings
from tasks.decontaminate.ngrams import NgramIndex
from tasks.runner import Runner
from tasks.shards import REJECTED, read_rows, read_table, rejected_row, write_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import FileRecord, Folder

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
PLAIN = re.compile(
    r"[\"'“‘(]*(?:[A-Za-z]+(?:['’/-][A-Za-z]+)*|\d+(?:[.,]\d+)*%?)[\"'”’)]*[,;:.!?]*[\"'”’)]*|--|–|—|e\.g\.,?|i\.e\.,?"
)
# What never stands in prose: tables, rules, operators, markup, dunder names, signatures, bullets, words without end.
FOREIGN = re.compile(r".*(?:[|=<>{}\\#@~^]|->|::|\.\.\.|__|---|\w\([^)]).*|[-•+·*]|async|def|class|\S{50,}")
SENTENCE_END = re.compile(r".*[.!?][\"'”’)]*")
ABBREVIATION = re.compile(r"[\"'“(]*(?:e\.g|i\.e|etc|vs|cf|[Dd]r|[Mm]rs?|[Ff]ig|[Nn]o|[Ss]t)\.", re.ASCII)
OPENING = re.compile(r"[\"'“‘(]*[A-Z].*", re.DOTALL)
TARGET = re.compile(r"([A-Za-z]{4,})[.!?]")  # of three letters and fewer most are function words
ODD_SHARE = 0.25  # of a sentence's words that need not be plain: ``names`` of things that it speaks of
HEADING = 60  # characters of a line that stops without a stop before a capital: wrapped prose fills its lines further
SENTENCE_WORDS = (3, 50)


class ClozeSettings(Settings):
    """What a passage is, and how many there are."""

    min_words: int = Field(30, ge=5)
    """Fewest words of a passage."""
    max_words: int = Field(110, le=1000)
    """Most words of a passage."""
    per_document: int = Field(20, ge=1)
    """Most passages of one document."""
    max_passages: int = Field(400, ge=1)
    """Most passages of the set."""
    max_copies: int = Field(3, ge=0)
    """A passage that shares 13 words with more documents outside the test split is a common phrase and not taken: the
    decontamination would have to cut it out of all of them."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Which passages are taken when there are more than enough."""

    @model_validator(mode="after")
    def _leave_room(self) -> Self:
        if self.max_words < self.min_words:
            raise ValueError(f"max_words {self.max_words} is below min_words {self.min_words}")
        return self


def cloze(root: Folder, clean: Manifest, settings: ClozeSettings, runner: Runner) -> Manifest:
    """Draw the passages of `evalset/cloze.jsonl` from the documents of the test split.

    In the counts a row is a passage that fits; reasons: `duplicate`, `common_phrase`, `over_limit`.

    Raises:
        RunError: the test split has no documents, or they have no prose.
    """
    step = Step(root, "cloze", version=1, parameters=settings, inputs={"clean": clean}, folder="evalset")
    if done := runner.finished(step):
        return done
    source, parts = root / clean.folder, [record.name for record in clean.outputs]
    drawn = runner.batches(step, "draw", parts, draw_part, source, settings)
    found = [row for outcome in drawn for record in outcome.audit for row in read_rows(step.folder, record.name)]
    if not found:
        raise RunError(
            f"no cloze passage in the {sum(outcome.facts['documents'] for outcome in drawn)} test documents of "
            f"{source.url}; give more pages, a larger clean.split.test, or a LAMBADA file by --lambada"
        )
    candidates = write_rows(step.folder, "candidates.parquet", found, PASSAGES)
    counted = runner.batches(step, "copies", parts, copies_part, source, candidates)
    copies: Counter[int] = Counter()
    for outcome in counted:
        for record in outcome.audit:
            copies.update({row["passage"]: row["documents"] for row in read_rows(step.folder, record.name)})
    taken, left = choose(found, copies, settings)
    if not taken:
        raise RunError(
            f"each of the {len(found)} cloze passages in {source.url} stands in more than {settings.max_copies} "
            "training documents; give more pages, or raise cloze.max_copies"
        )
    lines = "".join(json.dumps({"text": row["text"]}, ensure_ascii=False) + "\n" for row in taken)
    step.folder.write_bytes(CLOZE, lines.encode())
    outcome = Outcome(
        outputs=(step.folder.record(CLOZE, rows=len(taken)),),
        rejected=(write_rows(step.folder, "rejected/passages.parquet", left, REJECTED),) if left else (),
        audit=(write_rows(step.folder, "passages.parquet", taken, PASSAGES),),
        seen=len(found),
        kept=len(taken),
        reasons=dict(sorted(Counter(row["reason"] for row in left).items())),
        facts={"documents": sum(outcome.facts["documents"] for outcome in drawn)},
    )
    return step.commit(outcome)


def draw_part(folder: Folder, name: str, part: str, source: Folder, settings: ClozeSettings) -> Outcome:
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
    """Count the documents of one part outside the test split that share an n-gram with each candidate."""
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
    """Take passages by a seeded hash of their text, so that their order in the files does not matter.

    Returns:
        The passages taken, and rejected rows for the others.
    """
    key = settings.seed.to_bytes(8, "little")
    taken: list[dict[str, Any]] = []
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
            reason, detail = "duplicate", "the same passage of another document is taken"
        elif copies[number] > settings.max_copies:
            reason, detail = "common_phrase", f"in {copies[number]} documents, at most {settings.max_copies} expected"
        elif of_document[row["doc_id"]] >= settings.per_document:
            reason, detail = "over_limit", f"the document has given {settings.per_document} passages"
        elif len(taken) >= settings.max_passages:
            reason, detail = "over_limit", f"the set has {settings.max_passages} passages"
        if reason:
            left.append(rejected_row({**row, "id": row["doc_id"]}, reason, detail))
            continue
        taken.append(row)
        texts.add(row["text"])
        of_document[row["doc_id"]] += 1
    return taken, left


class Passage(NamedTuple):
    """A passage and its place in the document; `text` has single spaces and no final full stop."""

    start: int
    end: int
    text: str


def passages(text: str, min_words: int, max_words: int) -> Iterator[Passage]:
    """Passages of a text from left to right, none overlapping: the shortest run of sentences that fits, each time."""
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
    """Whether the last word is one to guess: letters, then the full stop, and met earlier in the passage."""
    target = TARGET.fullmatch(words[-1])
    if target is None:
        return False
    wanted = target.group(1).lower()
    return any(wanted in re.findall(r"[a-z]+", word.lower()) for word in words[:-1])


def prose_runs(text: str) -> list[list[tuple[int, int]]]:
    """Runs of consecutive prose sentences; each sentence as (start, end) in the text."""
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    number, start, odd, count = 0, -1, 0, 0
    tokens = list(TOKEN.finditer(text))
    for place, found in enumerate(tokens):
        token = found.group()
        if FOREIGN.fullmatch(token):
            number, start = number + 1, -1  # the sentence is no prose, and neither is one that goes across it
            continue
        if start < 0:
            start, odd, count = found.start(), 0, 0
        count += 1
        odd += PLAIN.fullmatch(token) is None
        behind = tokens[place + 1] if place + 1 < len(tokens) else None
        opens = behind is None or OPENING.fullmatch(behind.group()) or FOREIGN.fullmatch(behind.group())
        if SENTENCE_END.fullmatch(token) and opens and not ABBREVIATION.fullmatch(token):
            sentence = text[start : found.end()]
            if SENTENCE_WORDS[0] <= count <= SENTENCE_WORDS[1] and odd <= ODD_SHARE * count and is_whole(sentence):
                runs[number].append((start, found.end()))
            else:
                number += 1
            start = -1
        elif behind is not None and opens and "\n" in text[found.end() : behind.start()]:
            line = found.end() - (text.rfind("\n", 0, found.end()) + 1)
            if line <= HEADING and token[-1] not in ",;:":
                number, start = number + 1, -1
    return [runs[key] for key in sorted(runs)]


def is_whole(sentence: str) -> bool:
    """Whether a sentence begins with a capital and closes what it opens."""
    return OPENING.match(sentence) is not None and all(
        sentence.count(left) == sentence.count(right) for left, right in ("()", "[]", "“”")
    )


def cloze_file(root: Folder, manifest: Manifest) -> str:
    """Path of the passages that the step wrote."""
    return (root / manifest.folder).place(CLOZE)
