"""Public summary of training content, in the sections of the template of the European Commission.

Source: template for Article 53(1)(d) of Regulation (EU) 2024/1689, published 24 July 2025. What neither a manifest nor
the publisher's file states is marked, for the publisher to fill in; the summary is no legal advice.
"""

from collections.abc import Iterator
from pathlib import Path

from gpt2train.convert.markdown import plain, table
from gpt2train.store.counts import count_of
from gpt2train.store.hub import repository_of, with_commit
from tasks.outputs.passport.about import About
from tasks.outputs.passport.facts import SOURCES, Corpus, Training

NOT_STATED = "*not stated*"
SIZES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
LARGEST = "more than 10 trillion tokens"
SHARE, SMALL_SHARE, SMALL_MOST = 0.10, 0.05, 1000  # of all domains, by the template; small enterprises: at most so many
LISTED = ("blacklisted_domain", "listed_domain", "listed_url")  # reasons of URLs that are on a list


def eu_summary(corpus: Corpus, about: About, training: Training | None = None) -> str:
    """Return the summary in Markdown; `training` is None for a corpus without a model."""
    parts = [
        "# Public summary of training content",
        "## 1. General information",
        *_general(corpus, about, training),
        "## 2. List of data sources",
        *_sources(corpus, about),
        "## 3. Relevant aspects of data processing",
        *_processing(corpus, about),
    ]
    return "\n\n".join(parts) + "\n"


def _general(corpus: Corpus, about: About, training: Training | None) -> Iterator[str]:
    name = about.model or (training.run.name if training else "")
    yield "### 1.1 Provider\n\n" + _values(
        ("name", plain(about.provider)),
        ("contact", plain(about.contact)),
        ("authorised representative", plain(about.representative)),
    )
    yield "### 1.2 Model\n\n" + _values(
        ("versioned name", plain(name)),
        ("model it was derived from", plain(_base_model(training))),
        ("date of placing on the market", plain(about.published)),
    )
    # Counts of what a model is trained on; of all splits where none has that name.
    known, texts = (
        None if splits is None else splits.get("train", sum(splits.values()))
        for splits in (corpus.tokens, corpus.documents)
    )
    size = "unknown"
    if known is not None:
        bounds = next((name for bound, name in SIZES if known < bound), LARGEST)
        size = f"{bounds} ({count_of(known, 'token')}, {texts:,} texts)"
    latest = corpus.crawl.last if corpus.crawl else None
    yield "### 1.3 Training data\n\n" + _values(
        ("modalities", "text; no images, audio or video"),
        ("size", size),
        ("latest date of acquisition", latest or ""),
        ("languages", ", ".join(plain(code) for code, _ in corpus.languages)),
        ("tokens read in training", f"{training.run.tokens:,}" if training else ""),
        *_shares(training),
    )


def _base_model(training: Training | None) -> str:
    """Name of the model that a training began from: of the hub its address and commit, else that of its folder."""
    base = training.run.settings.get("checkpoints.init_from") if training else None
    if not training or not base:
        return "none"
    recorded = training.run.record.init_from or str(base)
    return with_commit(recorded) if repository_of(recorded) else Path(str(base)).name


def _shares(training: Training | None) -> list[tuple[str, str]]:
    """Shares of the samples of a training on several corpora; `size` and all that follows count all their texts."""
    notes = training.run.record.data if training else ()
    return [("corpora, by their share of what was read", ", ".join(f"{note.share:.1%}" for note in notes))] * (
        len(notes) > 1
    )


def _sources(corpus: Corpus, about: About) -> Iterator[str]:
    used = {source.step: source for source in corpus.sources}
    given = [source for step, source in used.items() if step not in ("download", "commoncrawl")]
    rows = [(SOURCES[one.step], f"{one.kept:,}") for one in given]
    public = [f"* {plain(name)}" for name in about.datasets]
    public += [f"* {plain(name)} at the commit {plain(commit)}" for name, commit in corpus.repositories.items()]
    if "commoncrawl" in used:
        public.append(f"* Common Crawl (commoncrawl.org), {count_of(used['commoncrawl'].kept, 'page')}")
    own = "Given files, whose origin the publisher states above or below:\n\n" + table(("kind", "records"), rows)
    listed = ["\n".join(public) or ("none" if not given else NOT_STATED), *([own] if given else [])]
    yield "### 2.1 Publicly available datasets\n\n" + "\n\n".join(listed)
    yield f"### 2.2 Private datasets obtained from third parties\n\n{plain(about.licensed_data, 2000) or NOT_STATED}"
    yield "### 2.3 Data crawled and scraped from online sources\n\n" + "\n\n".join(_crawled(corpus, about))
    yield f"### 2.4 User data\n\n{plain(about.user_data, 2000) or NOT_STATED}"
    yield f"### 2.5 Synthetic data\n\n{plain(about.synthetic_data, 2000) or NOT_STATED}"
    yield f"### 2.6 Other sources\n\n{plain(about.other, 2000) or NOT_STATED}"


def _crawled(corpus: Corpus, about: About) -> Iterator[str]:
    crawl = corpus.crawl
    if crawl is None:
        yield "The corpus has no crawl of its own."
    else:
        robots = {True: "obeys robots.txt", False: "does not obey robots.txt", None: ""}[crawl.obeyed_robots]
        yield _values(
            ("crawler", plain(crawl.user_agent or "")),
            ("behaviour", f"{robots}; fetches public pages alone, without accounts" if robots else ""),
            ("purpose", "text for training a language model"),
            ("period", f"{crawl.first} to {crawl.last}" if crawl.first else ""),
        )
    if corpus.hosts is None:
        yield "The texts do not name the pages that they come from."
        return
    count = top_domains(len(corpus.hosts), about.small_enterprise)
    share = f"{SMALL_SHARE if about.small_enterprise else SHARE:.0%}"
    yield f"The largest {share} of {len(corpus.hosts):,} domains ({count:,}), by the size of their texts:"
    rows = [(plain(host.name), f"{host.documents:,}", f"{host.characters:,}") for host in corpus.hosts[:count]]
    yield table(("domain", "texts", "characters"), rows)


def top_domains(domains: int, small_enterprise: bool) -> int:
    """Return how many of the domains the template asks for; at least one."""
    percent, most = (5, SMALL_MOST) if small_enterprise else (10, domains)
    return max(1, min(most, -(-domains * percent // 100)))


def _processing(corpus: Corpus, about: About) -> Iterator[str]:
    rights = []
    if corpus.crawl is not None:
        honoured = corpus.crawl.honoured
        if honoured is None:
            rights.append("It was not recorded which reservations the crawl honoured.")
        elif honoured:
            names = ", ".join(name.replace("_", " ") for name in honoured)
            rights.append(f"The crawl honours these machine-readable reservations: {names}.")
        else:
            rights.append("The crawl honoured no reservations beyond robots.txt.")
        if corpus.signals is not None:
            dropped = sum(one.dropped for one in corpus.signals if one.kind == "signal")
            rights.append(f"Left out for them: {count_of(dropped, 'page')}.")
    rights.append(plain(about.copyright_measures, 2000) or f"Further measures: {NOT_STATED}")
    yield "### 3.1 Reservations of rights from text and data mining\n\n" + "\n\n".join(rights)
    rows = [
        (step, plain(reason.replace("_", " ")), f"{count:,}")
        for (step, reason), count in sorted(corpus.dropped.items())
        if step == "blacklist" and reason in LISTED
    ]
    removed = "No page was removed by a list of hosts."
    if rows:
        removed = "Pages removed by lists of hosts and addresses, whatever these lists are for:\n\n"
        removed += table(("step", "reason", "pages"), rows)
    more = plain(about.illegal_content, 2000) or f"Further measures: {NOT_STATED}"
    yield f"### 3.2 Removal of illegal content\n\n{removed}\n\n{more}"
    masked = ", ".join(f"{count:,} {kind}" for kind, count in corpus.masked.items())
    yield "### 3.3 Other\n\n" + (f"Personal data was masked: {masked}." if masked else corpus.not_masked)


def _values(*rows: tuple[str, str]) -> str:
    return table(("item", "value"), [(name, value or NOT_STATED) for name, value in rows])
