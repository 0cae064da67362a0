"""Clean documents to documents without passages of the evaluation sets.

Writes `decontaminated/part-00000.parquet`, schema `shards.CLEAN`; `cuts/part-00000.parquet`, the spans that were cut
with set and row of the match; and `evaluation.parquet`, a copy of the sets. The rule is that of Megatron-LM's
`tools/openwebtext/filter_ngrams.py` (13-grams, 200 characters on each side, sentence ends) without its errors:

* positions refer to the text itself, not to its folded copy, which can be longer;
* the matched span is cut, not a span as long as the words joined by single spaces;
* documents of at most 13 words are checked as well, and the end of every document;
* text that is joined after a cut is checked again, so that no n-gram forms across the cut.

Invariant: no indexed n-gram is left in any document outside the exempt split. It is checked on the output: the facts
`matches_before` and `matches_after` count the n-grams of the sets in all these documents before and after, and
`matches_after` is 0. With `key_threshold` the invariant holds for n-grams below that count, and `matches_after` counts
the remaining occurrences of common ones.
"""

import functools
import logging
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from gpt2train.data.text_units import SENTENCE_END
from gpt2train.errors import RunError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.clean.splits import Split
from tasks.clean.token_counts import count_tokens
from tasks.core.document import pieces_between
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, commit_rows, read_rows, read_table, rejected_row, write_rows
from tasks.core.step import Step
from tasks.core.tokenizer_file import TokenizerFile, tokenizer_file
from tasks.decontaminate.eval_sets import find_sets, passages
from tasks.decontaminate.ngrams import Match, NgramIndex, word_spans
from tasks.decontaminate.settings import DecontaminateSettings

EVALUATION = pa.schema([("set", pa.string()), ("row", pa.int32()), ("text", pa.large_string())])
CUTS = pa.schema(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("round", pa.int32()),  # spans of round 1 and later refer to the text after the previous round
        ("start", pa.int32()),  # characters that were cut: start <= position < end
        ("end", pa.int32()),
        ("set", pa.string()),  # set and row of the first text that contains the first n-gram
        ("row", pa.int32()),
        ("matches", pa.int32()),  # n-grams inside the cut
    ]
)
COUNTS = pa.schema([("gram", pa.int32()), ("count", pa.int64())])
END = re.compile(rf"{SENTENCE_END}|\n")  # the extraction writes one block per line
SEPARATOR = "\n\n"
log = logging.getLogger("gpt2train")
# Documents of this split are unchanged: they are the source of the run's own cloze set and are never trained on.
EXEMPT: Split = "test"


def decontaminate(
    root: Folder,
    clean: Manifest,
    evaluation: Sequence[tuple[str, str]],
    settings: DecontaminateSettings,
    runner: Runner,
    *,
    tokenizer: Manifest | None = None,
) -> Manifest:
    """Cut the passages of the evaluation sets out of every document into `decontaminated/`.

    A cut document remains one document: the rest is joined by blank lines, `id`, `url` and `split` are unchanged,
    `tokens` is counted again with the tokenizer of the cleaning. Reasons: `contaminated` (nothing is left),
    `too_contaminated` (more than `max_cuts` cuts), `too_short` (fewer tokens left than the minimum of the cleaning).

    `evaluation` has (name, path or URL) of the flow's own sets; those of `settings.against` are added.

    Raises:
        UserError: an evaluation file is missing, empty or does not have the format of its extension.
        RunError: n-grams are left in the output, which is a bug.
    """
    sets = find_sets(evaluation, settings.against, settings.key)
    inputs: dict[str, Manifest | str] = {"clean": clean}
    inputs |= {f"evaluation:{item.name}": f"{item.file.identity} {item.key}" for item in sets}
    if tokenizer:
        inputs["tokenizer"] = tokenizer
    step = Step(
        root,
        "decontaminate",
        version=6,
        parameters={**settings.model_dump(mode="json", exclude={"against", "key"}), "exempt": EXEMPT},
        inputs=inputs,
        folder="decontaminated",
        packages=("tokenizers", "unicodedata"),
    )
    if done := runner.finished(step):
        return done
    rows = [row for item in sets for row in passages(item)]
    if settings.against:
        _warn_of_short(rows, settings.min_ngram)
    eval_sets = write_rows(step.folder, "evaluation.parquet", rows, EVALUATION)
    parts, source = [record.name for record in clean.outputs], root / clean.folder
    common: frozenset[int] = frozenset()
    if settings.key_threshold:
        counted = runner.batches(step, "count", parts, count_part, source, settings, eval_sets)
        common = _common(step.folder, counted, settings.key_threshold)
    lengths = (int(clean.parameters.get("min_tokens", 0)), tokenizer and tokenizer_file(root, tokenizer))
    outcomes = runner.batches(step, "part", parts, cut_part, source, settings, eval_sets, common, *lengths)
    total = Outcome.total(outcomes)
    if left := 0 if settings.key_threshold else total.facts.get("matches_after", 0):
        raise RunError(f"{left:,} n-grams of the evaluation sets are left in {step.folder.url}; please report this")
    return step.commit(total.model_copy(update={"audit": (eval_sets, *total.audit)}))


def _warn_of_short(rows: Sequence[dict[str, Any]], shortest: int) -> None:
    """Log the sets without a passage of as many words."""
    found: set[str] = set()
    for row in rows:
        if row["set"] not in found and len(word_spans(row["text"])) >= shortest:
            found.add(row["set"])
    for name, count in Counter(row["set"] for row in rows if row["set"] not in found).items():
        log.warning(
            f"decontaminate: {name} is not searched for: of its {count_of(count, 'passage')} none has {shortest} "
            "words; a lower decontaminate.min_ngram searches for them"
        )


def cut_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    settings: DecontaminateSettings,
    eval_sets: FileRecord,
    common: Collection[int],
    min_tokens: int,
    tokenizer: TokenizerFile | None,
) -> Outcome:
    """Decontaminate one part; runs in a worker."""
    index, origin = _index(folder.url, eval_sets, settings.ngram, settings.min_ngram)
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    cuts: list[dict[str, Any]] = []
    facts = Counter(matches_before=0, matches_after=0, documents_cut=0, documents_exempt=0, characters_removed=0)
    for row in read_rows(source, part):
        if row["split"] == EXEMPT:
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
        sources = [origin[index.sources(cut.gram)[0]] for cut in made]
        for cut, (evaluation_set, number) in zip(made, sources, strict=True):
            cuts.append({"id": row["id"], "url": row["url"], "set": evaluation_set, "row": number, **cut._asdict()})
        detail = f"{len(made)} cuts, the first by {sources[0][0]} row {sources[0][1]}"
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


class CutSpan(NamedTuple):
    """Span of characters to cut."""

    round: int
    start: int
    end: int
    gram: int  # number of the first n-gram in the span
    matches: int  # number of n-grams in the span


def remove(
    text: str, index: NgramIndex, settings: DecontaminateSettings, common: Collection[int] = ()
) -> tuple[str, list[CutSpan]]:
    """Cut n-grams out of a text until none of the index is left, except common ones.

    Returns:
        The rest, joined by blank lines ("" if nothing is left), and the cuts; the text itself without cuts.
    """
    made: list[CutSpan] = []
    for number in range(len(text) + 1):  # every round removes at least one word, so it ends long before
        matches = [match for match in index.matches(text) if match.gram not in common]
        if not matches:
            break
        cuts = plan_cuts(text, matches, settings.margin, number)
        made.extend(cuts)
        pieces = pieces_between(text, [(cut.start, cut.end) for cut in cuts])
        text = SEPARATOR.join(piece for piece in pieces if piece and len(piece) >= settings.min_piece)
    return text, made


def plan_cuts(text: str, matches: Sequence[Match], margin: int, number: int = 0) -> list[CutSpan]:
    """Plan the spans to cut in a round: matched words and `margin` characters on each side, to sentence ends, merged.

    The matches are sorted by start.
    """
    spans = word_spans(text)
    ends = [found.end() for found in END.finditer(text)]
    cuts: list[CutSpan] = []
    for match in matches:
        start = spans[match.start][0] - margin
        end = spans[match.start + match.length - 1][1] + margin
        before, after = bisect_right(ends, start), bisect_left(ends, end)
        start = ends[before - 1] if before else 0
        end = ends[after] if after < len(ends) else len(text)
        if cuts and start <= cuts[-1].end:
            last = cuts[-1]
            cuts[-1] = last._replace(start=min(start, last.start), end=max(end, last.end), matches=last.matches + 1)
        else:
            cuts.append(CutSpan(number, start, end, match.gram, 1))
    return cuts


def count_part(
    folder: Folder, name: str, part: str, source: Folder, settings: DecontaminateSettings, eval_sets: FileRecord
) -> Outcome:
    """Count how often each n-gram of the sets occurs in one part, for `key_threshold`."""
    index, _ = _index(folder.url, eval_sets, settings.ngram, settings.min_ngram)
    counts: Counter[int] = Counter()
    for row in read_rows(source, part, ["text", "split"]):
        if row["split"] != EXEMPT:
            counts.update(match.gram for match in index.matches(row["text"]))
    rows = [{"gram": gram, "count": count} for gram, count in sorted(counts.items())]
    return Outcome(audit=(write_rows(folder, f"counts/{name}.parquet", rows, COUNTS),))


def _common(folder: Folder, counted: Sequence[Outcome], threshold: int) -> frozenset[int]:
    total: Counter[int] = Counter()
    for outcome in counted:
        for record in outcome.audit:
            total.update({row["gram"]: row["count"] for row in read_rows(folder, record.name)})
    return frozenset(gram for gram, count in total.items() if count >= threshold)


@functools.lru_cache(maxsize=2)
def _index(url: str, record: FileRecord, ngram: int, min_ngram: int) -> tuple[NgramIndex, list[tuple[str, int]]]:
    """Index of the evaluation sets, and (set, row) of each of its texts; built once per worker."""
    table = read_table(Folder(url), record.name).to_pydict()  # the hash in `record` distinguishes the files of two runs
    index = NgramIndex(table["text"], ngram, min_ngram)
    return index, list(zip(table["set"], table["row"], strict=True))
