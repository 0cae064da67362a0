"""Facts of a corpus and of a training: the one source of every number in the documents.

They come from manifests and the files that these name. What an older release did not record is None or empty, and the
documents say that it is unknown.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.convert.card_scores import Score, scores_of
from gpt2train.errors import UserError
from gpt2train.runs.reading import Run, read_run
from gpt2train.store.folder import Folder
from gpt2train.store.hub import commits_in
from gpt2train.store.manifest import Manifest, read_manifest
from gpt2train.store.output import FinishedStep, Output
from gpt2train.store.rows import opened
from tasks.core.timings import read_timings
from tasks.core.url_lists import hosts_of
from tasks.sources.texts import LICENSE

MAX_TIME = 253402300800  # seconds until the year 10,000
SPLITS = ("train", "valid", "test")
MASKED = "masked_"  # start of the facts of the step clean that count masked personal data
SOURCES = {
    "download": "pages fetched by the crawler of this project",
    "commoncrawl": "pages of Common Crawl, read from its archives",
    "warcs": "pages of given web archives (WARC)",
    "webpages": "given records of web pages",
    "texts": "given texts",
    "ready_tokens": "given token files",
}


# When each step last started and ended, UTC, by its name; without the steps that were not timed.
Times = Mapping[str, tuple[datetime, datetime]]


@dataclass(frozen=True)
class Source:
    """Step that brought documents into the corpus, with its rows."""

    step: str  # a key of `SOURCES`
    seen: int
    kept: int
    bytes: int | None  # of the pages or texts; None if not recorded


@dataclass(frozen=True)
class Crawl:
    """The crawl of a corpus; None stands for what was not recorded."""

    user_agent: str | None  # name that the crawler gave
    obeyed_robots: bool | None
    honoured: tuple[str, ...] | None  # kinds of opt-out signals
    first: str | None  # date of the first page, YYYY-MM-DD
    last: str | None


@dataclass(frozen=True)
class Host:
    """Host of pages in the final documents."""

    name: str
    documents: int
    characters: int


@dataclass(frozen=True)
class Signal:
    """Opt-out signal or licence that sites stated."""

    kind: str  # `signal` or `license`
    name: str
    pages: int
    dropped: int
    hosts: int


@dataclass(frozen=True)
class Corpus:
    """Facts of a corpus; the counts are of the final documents."""

    steps: tuple[FinishedStep, ...]  # those that made it, in their order
    sources: tuple[Source, ...]
    crawl: Crawl | None
    documents: Mapping[str, int]  # by split, as the two that follow
    characters: Mapping[str, int]
    tokens: Mapping[str, int] | None  # None before the step tokenize
    languages: tuple[tuple[str, int], ...]  # documents, most frequent first; `unknown` if a document has none
    hosts: tuple[Host, ...] | None  # most characters first; None if the documents do not name their page
    signals: tuple[Signal, ...] | None  # None if not recorded
    packages: Mapping[str, str]  # versions of what the outputs depend on; empty if not recorded
    times: Times

    @property
    def last(self) -> Manifest:
        """Manifest of the last step."""
        return self.steps[-1].manifest

    @property
    def document_steps(self) -> tuple[FinishedStep, ...]:
        """Steps that the documents passed: without the one that draws an evaluation set from them."""
        return tuple(step for step in self.steps if step.manifest.step != "cloze")

    @property
    def repositories(self) -> dict[str, str]:
        """Commits at which repositories of the hub were read, by their addresses; several are joined by a comma."""
        return joined(commits_in(step.manifest.read) for step in self.steps)

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Number of dropped rows by step and reason, in the order of the steps; most frequent reasons first."""
        found = Counter[tuple[str, str]]()
        for step in self.document_steps:
            found.update({(step.manifest.step, reason): n for reason, n in step.manifest.outcome.reasons.items()})
        order = list(dict.fromkeys(step.manifest.step for step in self.steps))
        return {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), -found[key], key[1]))}

    @property
    def masked(self) -> dict[str, int]:
        """Number of masked personal data by kind."""
        facts = [step.manifest.outcome.facts for step in self.steps]
        kinds = Counter({name: count for one in facts for name, count in one.items() if name.startswith(MASKED)})
        return {name.removeprefix(MASKED).replace("_", " "): kinds[name] for name in sorted(kinds)}

    @property
    def not_masked(self) -> str:
        """Sentence about personal data of which nothing was masked: nothing was found, or not looked for."""
        settings = [step.manifest.parameters.get("filters") for step in self.steps if step.manifest.step == "clean"]
        masks = [found.get("pii", {}) for found in settings if isinstance(found, dict)]
        if not masks:
            return "No personal data was masked."
        wanted = sorted(name.replace("_", " ") for mask in masks for name, is_on in mask.items() if is_on is True)
        if not wanted:
            return "No personal data was masked: the masks were off."
        return f"No personal data was masked: none was found of what was looked for ({', '.join(wanted)})."


@dataclass(frozen=True)
class Training:
    """Facts of a training."""

    run: Run
    manifest: Manifest | None  # None of a run without a flow
    merge: Manifest | None  # None if the model is not merged
    scores: tuple[Score, ...]  # of the merged model
    devices: tuple[str, ...]  # of its starts
    packages: Mapping[str, str]  # versions of Python, torch and this project, and those that the model depends on
    commits: tuple[str, ...]  # of the checkout at its starts, where known
    times: Times


def corpus_facts(root: Folder) -> Corpus:
    """Read the facts of the corpus in an output folder.

    Raises:
        UserError: it holds no finished step with documents.
    """
    output = Output(root)
    output.check_documents()
    steps = _chain(output)
    by_name = {step.manifest.step: step for step in steps}
    last = by_name.get("shuffle") or next((step for step in reversed(steps) if "text" in step.columns()), None)
    documents, characters, languages, hosts = _contents(last) if last else ({}, {}, (), None)
    download = by_name.get("download")
    signals = _signals(download) if download else ()
    return Corpus(
        steps=tuple(steps),
        sources=tuple(_sources(steps)),
        crawl=_crawl(download) if download else None,
        documents=documents,
        characters=characters,
        tokens=_tokens(by_name.get("tokenize") or by_name.get("ready_tokens")),
        languages=languages,
        hosts=hosts,
        signals=None if signals is None else (*signals, *_licenses(by_name.get("texts"))),
        packages=joined(step.manifest.versions for step in steps),
        times=times_of(root),
    )


def training_facts(root: Folder, name: str) -> Training:
    """Read the facts of a run, by the name of its folder below `runs/`.

    Raises:
        UserError: it is no run, or not on a local disk.
        RunError: a file of the run is damaged.
    """
    if not root.is_local:
        raise UserError(f"a training run is read from a local folder, not from {root.url}; copy the run first")
    folder = Path(root.path(f"runs/{name}"))
    run = read_run(folder)
    merged = read_manifest(Folder(folder) / "merge")
    weights = next((file.sha256 for file in merged.outputs if file.name == "model.safetensors"), "") if merged else ""
    starts = run.record.starts
    made = [start.versions for start in starts] + ([merged.versions] if merged else [])
    return Training(
        run=run,
        manifest=read_manifest(Folder(folder)),
        merge=merged,
        scores=scores_of(folder, weights),
        devices=tuple(sorted({f"{start.world} x {start.device}" for start in starts})),
        packages=joined(made),
        commits=tuple(sorted({start.commit for start in starts if start.commit})),
        times=times_of(root),
    )


def times_of(root: Folder) -> Times:
    """Read the times of the steps of an output folder."""
    found = {}
    for name, row in read_timings(root).items():
        ended, seconds = row.get("ended"), row.get("seconds")
        if isinstance(ended, int | float) and isinstance(seconds, int | float) and 0 <= seconds <= ended < MAX_TIME:
            found[name] = (datetime.fromtimestamp(ended - seconds, UTC), datetime.fromtimestamp(ended, UTC))
    return found


def _chain(output: Output) -> list[FinishedStep]:
    """Return the steps that made the tokens, or else the last one with documents; a report or an old step is none."""
    ends = [step for step in output.steps if step.manifest.step in ("tokenize", "ready_tokens")]
    ends = ends or [step for step in output.steps if "text" in step.columns()] or output.steps
    return output.chain(ends[-1])


def _sources(steps: Iterable[FinishedStep]) -> Iterator[Source]:
    for step in steps:
        name, outcome = step.manifest.step, step.manifest.outcome
        if name in SOURCES:
            yield Source(name, outcome.seen, outcome.kept, outcome.facts.get("bytes", outcome.facts.get("characters")))


def _crawl(download: FinishedStep) -> Crawl:
    parameters = download.manifest.parameters
    consent = parameters.get("consent")
    honoured = None
    if isinstance(consent, dict):
        honoured = tuple(map(str, consent.get("honour", ()))) if consent.get("enabled") else ()
    days = set[str]()
    for name in download.audit("ledger"):
        with opened(download.folder, name) as file:
            if {"fetched_at", "status"} <= set(file.schema_arrow.names):
                table = file.read(["fetched_at", "status"])
                times = table.filter(pc.equal(table["status"], "ok"))["fetched_at"].drop_null()
                days |= {str(bound)[:10] for bound in pc.min_max(times).as_py().values() if bound}
    obeyed, agent = parameters.get("obey_robots"), parameters.get("user_agent")
    return Crawl(
        user_agent=str(agent) if agent else None,
        obeyed_robots=None if obeyed is None else bool(obeyed),
        honoured=honoured,
        first=min(days, default=None),
        last=max(days, default=None),
    )


def _contents(
    step: FinishedStep,
) -> tuple[dict[str, int], dict[str, int], tuple[tuple[str, int], ...], tuple[Host, ...] | None]:
    """Documents and characters by split, documents by language, and hosts; read row group by row group."""
    documents, characters = Counter[str](), Counter[str]()
    languages, pages, sizes = Counter[str](), Counter[str](), Counter[str]()
    wanted = [name for name in ("text", "split", "language", "url") if name in step.columns()]
    for name in step.outputs:
        with opened(step.folder, name) as file:
            for group in file.iter_batches(batch_size=4096, columns=wanted):
                table = pa.table(group)
                lengths = pc.cast(pc.utf8_length(table["text"]), pa.int64())
                splits = table["split"] if "split" in wanted else pa.array(["train"] * table.num_rows)
                _add(splits, lengths, documents, characters)
                if "language" in wanted:
                    languages.update(value or "unknown" for value in table["language"].to_pylist())
                if "url" in wanted:
                    _add(hosts_of(table["url"]), lengths, pages, sizes)
    hosts = [Host(name, pages[name], sizes[name]) for name in pages]
    hosts.sort(key=lambda host: (-host.characters, host.name))
    ranked = sorted(languages.items(), key=lambda item: (-item[1], item[0]))
    in_order = [name for name in SPLITS if documents[name]]
    return (
        {name: documents[name] for name in in_order},
        {name: characters[name] for name in in_order},
        tuple(ranked),
        tuple(hosts) or None,
    )


def _add(keys: Any, lengths: Any, counts: Counter[str], sizes: Counter[str]) -> None:
    """Add the number and the sum of lengths of each key; rows without a key are left out."""
    table = pa.table({"key": keys, "length": lengths})
    for row in table.group_by("key").aggregate([("length", "sum"), ("key", "count")]).to_pylist():
        if row["key"]:
            counts[row["key"]] += row["key_count"]
            sizes[row["key"]] += row["length_sum"]


def _tokens(step: FinishedStep | None) -> dict[str, int] | None:
    if step is None:
        return None
    facts = step.manifest.outcome.facts
    return {name: facts[f"{name}_tokens"] for name in SPLITS if facts.get(f"{name}_tokens")} or None


def _signals(download: FinishedStep) -> tuple[Signal, ...] | None:
    names = [file.name for file in download.manifest.outcome.audit if re.fullmatch(r"consent.*\.parquet", file.name)]
    if not names:
        return None
    with opened(download.folder, names[0]) as file:
        rows = file.read().to_pylist()
    return summed(Signal(str(row["kind"]), str(row["value"]), row["pages"], row["dropped"], 1) for row in rows)


def summed(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """Add up the counts of each signal and licence; the most frequent of a kind come first."""
    found: dict[tuple[str, str], Signal] = {}
    for one in signals:
        key = (one.kind, one.name)
        before = found.get(key, Signal(*key, 0, 0, 0))
        found[key] = Signal(*key, before.pages + one.pages, before.dropped + one.dropped, before.hosts + one.hosts)
    return tuple(sorted(found.values(), key=lambda one: (one.kind, -one.pages, one.name)))


def _licenses(texts: FinishedStep | None) -> tuple[Signal, ...]:
    """Return the licences that given documents state."""
    facts = texts.manifest.outcome.facts if texts else {}
    return summed(
        Signal("license", n.removeprefix(LICENSE), pages, 0, 0) for n, pages in facts.items() if n.startswith(LICENSE)
    )


def joined(versions: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all versions by name, as of packages; several of one are joined by a comma."""
    found: dict[str, set[str]] = {}
    for one in versions:
        for name, version in one.items():
            found.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(found[name])) for name in sorted(found)}
