"""Clean documents -> documents without passages of the evaluation sets.

`decontaminated/part-00000.parquet`, schema `shards.CLEAN`; `cuts/part-00000.parquet` says what was cut where, by which
row of which set; `evaluation.parquet` holds the sets as they were. The rule is that of Megatron-LM's
`tools/openwebtext/filter_ngrams.py` (13-grams, 200 characters to each side, sentence ends) with its errors mended:

* places are those of the text itself, not of its lower-cased copy, which can be longer;
* the matched span is cut, not a span as long as the words joined by single spaces;
* a document of fewer than 13 words, or of just 13, is checked as well, and the tail of every document;
* what is joined after a cut is checked again, so that no n-gram forms across the seam.

The promise: no indexed n-gram is left in any document outside the exempt split. It is checked on what is written: the
facts `matches_before` and `matches_after` count the n-grams of the sets in all these documents before and after, and
`matches_after` is 0. Where `key_threshold` is set the promise holds for the n-grams that are rarer than that, and
`matches_after` is how many places of common ones are left.
"""

import functools
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
from pydantic import Field, model_validator

from gpt2train.errors import RunError
from gpt2train.settings import Settings
from tasks.clean.counting import TokenizerFile, count_tokens, tokenizer_file
from tasks.clean.split import Split
from tasks.decontaminate.evaluation import find_sets, passages
from tasks.decontaminate.ngrams import Match, NgramIndex, word_spans
from tasks.runner import Runner
from tasks.shards import CLEAN, commit_rows, read_rows, read_table, rejected_row, write_rows
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import FileRecord, Folder

EVALUATION = pa.schema([("set", pa.string()), ("row", pa.int32()), ("text", pa.large_string())])
CUTS = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("round", pa.int32()),  # places of round 1 and later are those of the text that the round before left
        ("start", pa.int32()),  # characters that were cut: start <= place < end
        ("end", pa.int32()),
        ("set", pa.string()),  # the first n-gram's first holder: name of the set, and its row
        ("row", pa.int32()),
        ("matches", pa.int32()),  # n-grams inside the cut
    ]
)
COUNTS = pa.schema([("gram", pa.int32()), ("count", pa.int64())])
# A line end counts as a sentence end: the extraction writes a block a line. A full stop inside a name does not.
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s)|\n")
SEAM = "\n\n"


class DecontaminateSettings(Settings):
    """What counts as a passage of an evaluation set, and how much goes with it."""

    longest: int = Field(13, ge=2, le=50)
    """Words of an n-gram."""
    shortest: int = Field(8, ge=2, le=50)
    """Evaluation texts with fewer than `longest` words are searched whole, down to this many; shorter ones never."""
    margin: int = Field(200, ge=0)
    """Characters cut to each side of a match, before the cut is widened to the next sentence end."""
    min_piece: int = Field(200, ge=0)
    """Characters; shorter pieces between cuts are dropped."""
    max_cuts: int = Field(10, ge=0)
    """A document with more cuts than this is dropped."""
    key_threshold: int = Field(0, ge=0)
    """N-grams seen this often in the corpus count as common phrases and stay (Megatron: 10). 0, the default, removes
    them too: else an evaluation passage that is copied often enough would stay in the training text."""
    against: tuple[str, ...] = ()
    """Further evaluation sets to keep out (WikiText, a benchmark of your own): files, globs, folders or fsspec URLs of
    .jsonl, .parquet and plain text, packed (.gz .bz2 .xz .zst) or not."""
    key: str = "text"
    """Column, or key of each JSON line, that holds the passage, in the files of `against`."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest {self.shortest} is more than longest {self.longest}; give at most as much")
        return self


class EvaluationFile(NamedTuple):
    """Where a worker finds the evaluation sets."""

    folder: Folder
    record: FileRecord


def decontaminate(
    root: Folder,
    clean: Manifest,
    evaluation: Sequence[tuple[str, str]],
    settings: DecontaminateSettings,
    runner: Runner,
    *,
    exempt: Split | None = "test",
    tokenizer: Manifest | None = None,
) -> Manifest:
    """Cut the passages of the evaluation sets out of every document into `decontaminated/`.

    A cut document stays one document: what is left is joined by blank lines, `id`, `url` and `split` stay, `tokens` is
    counted anew. Reasons: `contaminated` (nothing is left), `too_contaminated` (more than `max_cuts`), `too_short`
    (fewer tokens than the cleaning asks for are left).

    Args:
        root: the output URL.
        clean: of the cleaning; its `min_tokens` holds here as well.
        evaluation: (name, path or URL) of the flow's own sets; those of `settings.against` come behind them.
        settings: the rule.
        runner: where the batches run.
        exempt: documents of this split stay as they are. The test documents are the source of the embedded evaluation
            set and never reach the training.
        tokenizer: what the cleaning counted with.

    Raises:
        UserError: an evaluation file is missing, empty or not what its name says.
    """
    sets = find_sets(evaluation, settings.against, settings.key)
    inputs: dict[str, Manifest | str] = {"clean": clean}
    inputs |= {f"evaluation:{item.name}": f"{item.file.identity} {item.key}" for item in sets}
    if tokenizer:
        inputs["tokenizer"] = tokenizer
    step = Step(
        root,
        "decontaminate",
        version=2,
        parameters={**settings.model_dump(mode="json", exclude={"against", "key"}), "exempt": exempt},
        inputs=inputs,
        folder="decontaminated",
    )
    if done := runner.finished(step):
        return done
    rows = [row for item in sets for row in passages(item)]
    known = EvaluationFile(step.folder, write_rows(step.folder, "evaluation.parquet", rows, EVALUATION))
    parts, source = [record.name for record in clean.outputs], root / clean.folder
    common: frozenset[int] = frozenset()
    if settings.key_threshold:
        counted = runner.batches(step, "count", parts, count_part, source, settings, exempt, known)
        common = _common(step.folder, counted, settings.key_threshold)
    lengths = (int(clean.parameters.get("min_tokens", 0)), tokenizer_file(root, tokenizer))
    outcomes = runner.batches(step, "part", parts, cut_part, source, settings, exempt, known, common, lengths)
    total = Outcome.total(outcomes)
    if left := 0 if settings.key_threshold else total.facts.get("matches_after", 0):
        raise RunError(f"{left:,} n-grams of the evaluation sets are left in {step.folder.url}; please report this")
    return step.commit(total.model_copy(update={"audit": (known.record, *total.audit)}))


def cut_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    settings: DecontaminateSettings,
    exempt: Split | None,
    known: EvaluationFile,
    common: Collection[int],
    lengths: tuple[int, TokenizerFile | None],
) -> Outcome:
    """Decontaminate one part; runs in a worker."""
    index, origin = load_index(known, settings)
    min_tokens, tokenizer = lengths
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    cuts: list[dict[str, Any]] = []
    facts = Counter(matches_before=0, matches_after=0, documents_cut=0, documents_exempt=0, characters_removed=0)
    for row in read_rows(source, part):
        if exempt is not None and row["split"] == exempt:
            facts["documents_exempt"] += 1
            kept.append(row)
            continue
        before = len(index.matches(row["text"]))
        facts["matches_before"] += before
        text, made = remove(row["text"], index, settings, common) if before else (row["text"], [])
        if not made:
            facts["matches_after"] += before  # of common n-grams
            kept.append(row)
            continue
        places = [origin[index.sources(cut.gram)[0]] for cut in made]
        for cut, (evaluation_set, number) in zip(made, places, strict=True):
            found = {"round": cut.round, "start": cut.start, "end": cut.end, "matches": cut.matches}
            cuts.append({"id": row["id"], "url": row["url"], "set": evaluation_set, "row": number, **found})
        detail = f"{len(made)} cuts, the first by {places[0][0]} row {places[0][1]}"
        [tokens] = count_tokens([text], tokenizer)
        if len(made) > settings.max_cuts:
            rejected.append(rejected_row(row, "too_contaminated", f"{detail}; at most {settings.max_cuts} expected"))
        elif not text:
            rejected.append(rejected_row(row, "contaminated", f"{detail}; nothing is left"))
        elif tokens < min_tokens:
            rejected.append(rejected_row(row, "too_short", f"{detail}; {tokens} tokens left of {min_tokens} expected"))
        else:
            facts["documents_cut"] += 1
            facts["characters_removed"] += len(row["text"]) - len(text)
            facts["matches_after"] += len(index.matches(text))
            kept.append({**row, "text": text, "tokens": tokens})
    outcome = commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, dict(facts))
    audit = (write_rows(folder, f"cuts/{name}.parquet", cuts, CUTS),) if cuts else ()
    return outcome.model_copy(update={"audit": audit})


class Cut(NamedTuple):
    """A stretch of text that goes."""

    round: int
    start: int
    end: int
    gram: int
    """The first n-gram inside."""
    matches: int
    """N-grams inside."""


def remove(
    text: str, index: NgramIndex, settings: DecontaminateSettings, common: Collection[int] = ()
) -> tuple[str, list[Cut]]:
    """Cut until no n-gram of the index is left.

    Returns:
        The rest, joined by blank lines ("" where nothing is left), and the cuts; the text itself where there are none.
    """
    made: list[Cut] = []
    for number in range(len(text) + 1):  # every round takes at least one word, so it ends long before
        matches = [match for match in index.matches(text) if match.gram not in common]
        if not matches:
            break
        cuts = plan_cuts(text, matches, settings.margin, number)
        made.extend(cuts)
        edges = [0, *(edge for cut in cuts for edge in (cut.start, cut.end)), len(text)]
        pieces = [text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True)]
        text = SEAM.join(piece for piece in pieces if piece and len(piece) >= settings.min_piece)
    return text, made


def plan_cuts(text: str, matches: Sequence[Match], margin: int, number: int = 0) -> list[Cut]:
    """Stretches to cut: the matched words and `margin` characters to each side, widened to sentence ends, merged.

    `matches` are sorted by start.
    """
    spans = word_spans(text)
    ends = [found.end() for found in SENTENCE_END.finditer(text)]
    cuts: list[Cut] = []
    for match in matches:
        start = spans[match.start][0] - margin
        end = spans[match.start + match.length - 1][1] + margin
        before, behind = bisect_right(ends, start), bisect_left(ends, end)
        start = ends[before - 1] if before else 0
        end = ends[behind] if behind < len(ends) else len(text)
        if cuts and start <= cuts[-1].end:
            last = cuts[-1]
            cuts[-1] = last._replace(start=min(start, last.start), end=max(end, last.end), matches=last.matches + 1)
        else:
            cuts.append(Cut(number, start, end, match.gram, 1))
    return cuts


def count_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    settings: DecontaminateSettings,
    exempt: Split | None,
    known: EvaluationFile,
) -> Outcome:
    """Count how often each n-gram of the sets occurs in one part, for `key_threshold`."""
    index, _ = load_index(known, settings)
    counts: Counter[int] = Counter()
    for row in read_rows(source, part, ["text", "split"]):
        if exempt is None or row["split"] != exempt:
            counts.update(match.gram for match in index.matches(row["text"]))
    rows = [{"gram": gram, "count": count} for gram, count in sorted(counts.items())]
    return Outcome(audit=(write_rows(folder, f"counts/{name}.parquet", rows, COUNTS),))


def _common(folder: Folder, counted: Sequence[Outcome], threshold: int) -> frozenset[int]:
    total: Counter[int] = Counter()
    for outcome in counted:
        for record in outcome.audit:
            total.update({row["gram"]: row["count"] for row in read_rows(folder, record.name)})
    return frozenset(gram for gram, count in total.items() if count >= threshold)


def load_index(known: EvaluationFile, settings: DecontaminateSettings) -> tuple[NgramIndex, list[tuple[str, int]]]:
    """The index of the evaluation sets and (set, row) of each of its texts; built once per worker."""
    return _index(known.folder.url, known.record.name, known.record.sha256, settings.longest, settings.shortest)


@functools.lru_cache(maxsize=2)
def _index(url: str, name: str, sha256: str, longest: int, shortest: int) -> tuple[NgramIndex, list[tuple[str, int]]]:
    table = read_table(
        Folder(url), name
    ).to_pydict()  # the hash is in the arguments to tell one run's file from another's
    index = NgramIndex(table["text"], longest, shortest)
    return index, list(zip(table["set"], table["row"], strict=True))
