"""Sections of the model card and of the dataset card about the training text, and the dataset card itself."""

from collections import Counter
from collections.abc import Mapping

from gpt2train.convert.dataset import SPLITS, Counts, dataset_card
from gpt2train.convert.markdown import plain, table
from tasks.outputs.passport.facts import SOURCES, Corpus, Training

TOP = 20  # hosts, languages and licences in a table
UNKNOWN = "unknown"
Sections = tuple[tuple[str, str], ...]


def card_of_corpus(corpus: Corpus, license: str | None = None) -> str:
    """Return the dataset card of a corpus; `license` is the identifier of the collection's licence, if known."""
    counts = Counts(
        Counter({SPLITS[name]: count for name, count in corpus.documents.items()}),
        Counter({SPLITS[name]: count for name, count in corpus.characters.items()}),
        Counter(dict(corpus.languages)),
    )
    steps = [step.manifest for step in corpus.document_steps]
    return dataset_card(counts, steps, license, corpus_sections(corpus))


def corpus_sections(corpus: Corpus) -> Sections:
    """Return the sections of a card about the sources of a corpus, and what was removed from it, with titles."""
    found = [
        ("Sources", _sources(corpus)),
        ("Tokens", _count_table("split", corpus.tokens) if corpus.tokens else "The tokens were not counted."),
        ("Domains", _domains(corpus)),
        ("Languages", _languages(corpus)),
        ("Filters", _filters(corpus)),
        ("Rights", _rights(corpus)),
        ("Personal data", _count_table("masked", corpus.masked) if corpus.masked else corpus.not_masked),
    ]
    return tuple(found)


def training_sections(training: Training) -> Sections:
    """Return the section of a model card about what the training took, with its title."""
    run = training.run
    measured = {"the GPUs, by NVML": run.gpu_kwh, "the CPU packages, by RAPL": run.cpu_kwh}
    energy = "; ".join(f"{kwh:,.3g} kWh of {name}" for name, kwh in measured.items() if kwh is not None)
    rows = [
        ("devices", "; ".join(map(plain, training.devices)) or UNKNOWN),
        ("time", f"{run.hours:,.3g} hours of training steps" if run.rows else UNKNOWN),
        ("energy", energy or f"{UNKNOWN} (not measured)"),
    ]
    return (("Cost", table(("property", "value"), rows)),)


def _sources(corpus: Corpus) -> str:
    rows = [
        (SOURCES[one.step], f"{one.seen:,}", f"{one.kept:,}", UNKNOWN if one.bytes is None else f"{one.bytes:,} bytes")
        for one in corpus.sources
    ]
    parts = [table(("source", "given", "read", "size"), rows)] if rows else ["The sources were not recorded."]
    if corpus.repositories:
        commits = [(plain(name), plain(commit)) for name, commit in corpus.repositories.items()]
        parts.append(table(("repository of the hub", "commit"), commits))
    if crawl := corpus.crawl:
        period = UNKNOWN if crawl.first is None else f"{crawl.first} to {crawl.last}"
        robots = {True: "obeyed", False: "not obeyed", None: UNKNOWN}[crawl.obeyed_robots]
        values = [("crawler", plain(crawl.user_agent or UNKNOWN)), ("pages fetched", period), ("robots.txt", robots)]
        parts.append(table(("crawl", "value"), values))
    return "\n\n".join(parts)


def _domains(corpus: Corpus) -> str:
    if not corpus.hosts:
        return "The documents do not name the pages that they come from."
    total = sum(host.characters for host in corpus.hosts)
    rows = [
        (plain(host.name), f"{host.documents:,}", f"{host.characters:,}", f"{host.characters / max(total, 1):.1%}")
        for host in corpus.hosts[:TOP]
    ]
    shown = f"The {len(rows)} largest of {len(corpus.hosts):,} hosts" if len(rows) < len(corpus.hosts) else "All hosts"
    text = f"{shown}, by characters of the final documents:"
    return f"{text}\n\n" + table(("host", "documents", "characters", "share"), rows)


def _languages(corpus: Corpus) -> str:
    total = sum(count for _, count in corpus.languages)
    rows = [(plain(name), f"{count:,}", f"{count / total:.1%}") for name, count in corpus.languages[:TOP]]
    return table(("language", "documents", "share"), rows) if rows else "The languages were not recorded."


def _filters(corpus: Corpus) -> str:
    rows = [(step, plain(reason.replace("_", " ")), f"{n:,}") for (step, reason), n in corpus.dropped.items()]
    return "Rows that each step dropped, by reason:\n\n" + table(("step", "reason", "rows"), rows) if rows else "None."


def _rights(corpus: Corpus) -> str:
    if corpus.signals is None:
        return "Opt-out signals and licences of the pages were not recorded."
    parts = []
    if corpus.crawl is not None:
        honoured = corpus.crawl.honoured
        names = UNKNOWN if honoured is None else ", ".join(name.replace("_", " ") for name in honoured) or "none"
        parts.append(f"Opt-out signals that the crawl honoured: {names}.")
    for kind, title in (("signal", "Opt-out signals seen"), ("license", "Licences that pages state")):
        found = [one for one in corpus.signals if one.kind == kind]
        rows = [(plain(one.name), f"{one.pages:,}", f"{one.dropped:,}", f"{one.hosts:,}") for one in found[:TOP]]
        rest = f" (the {TOP} most frequent of {len(found):,})" if len(found) > TOP else ""
        columns = ("name", "pages", "dropped", "hosts")
        parts.append(f"{title}{rest}:\n\n{table(columns, rows)}" if rows else f"{title}: none.")
    parts.append("The texts remain under the terms of their sources.")
    return "\n\n".join(parts)


def _count_table(name: str, counts: Mapping[str, int]) -> str:
    return table((name, "number"), [(plain(key), f"{count:,}") for key, count in counts.items()])
