"""Facts of a blend: the corpora of one training as one corpus, for its cards and its public summary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tasks.outputs.passport.facts import SOURCES, SPLITS, Corpus, Crawl, Host, Signal, Source, joined, summed


def blend_facts(corpora: Sequence[Corpus]) -> Corpus:
    """Return the facts of all documents of one or more corpora.

    Counts are added up, whatever share of a corpus the training reads. What one corpus did not record is not known of
    the blend either, except for hosts: those that are known are listed. The blend has no times.
    """
    if len(corpora) == 1:
        return corpora[0]
    languages = _sum(dict(one.languages) for one in corpora)
    return Corpus(
        steps=tuple(step for one in corpora for step in one.steps),
        sources=tuple(_sources(source for one in corpora for source in one.sources)),
        crawl=_crawl([one.crawl for one in corpora if one.crawl]),
        documents=_by_split(_sum(one.documents for one in corpora)),
        characters=_by_split(_sum(one.characters for one in corpora)),
        tokens=_by_split(_sum(one.tokens or {} for one in corpora)) if all(one.tokens for one in corpora) else None,
        languages=tuple(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
        hosts=_hosts([host for one in corpora for host in one.hosts or ()]),
        signals=_signals(corpora),
        packages=joined(one.packages for one in corpora),
        times={},
    )


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return total


def _by_split(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in SPLITS if counts.get(name)}


def _sources(sources: Iterable[Source]) -> Iterable[Source]:
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(source.step, []).append(source)
    for step in SOURCES:
        if same := found.get(step):
            sizes = [one.bytes for one in same if one.bytes is not None]
            size = sum(sizes) if len(sizes) == len(same) else None
            yield Source(step, sum(one.seen for one in same), sum(one.kept for one in same), size)


def _crawl(crawls: Sequence[Crawl]) -> Crawl | None:
    if not crawls:
        return None
    agents = sorted({one.user_agent for one in crawls if one.user_agent})
    obeyed = [one.obeyed_robots for one in crawls]
    honoured = [one.honoured for one in crawls]
    common = None
    if None not in honoured:
        common = tuple(name for name in honoured[0] or () if all(name in (kinds or ()) for kinds in honoured))
    return Crawl(
        user_agent=", ".join(agents) or None,
        obeyed_robots=False if False in obeyed else None if None in obeyed else True,
        honoured=common,
        first=min((one.first for one in crawls if one.first), default=None),
        last=max((one.last for one in crawls if one.last), default=None),
    )


def _hosts(hosts: Sequence[Host]) -> tuple[Host, ...] | None:
    documents = _sum({host.name: host.documents} for host in hosts)
    characters = _sum({host.name: host.characters} for host in hosts)
    ranked = sorted(documents, key=lambda name: (-characters[name], name))
    return tuple(Host(name, documents[name], characters[name]) for name in ranked) or None


def _signals(corpora: Sequence[Corpus]) -> tuple[Signal, ...] | None:
    if any(one.signals is None for one in corpora):
        return None
    # A host of two corpora counts twice: the signals of single hosts are not among the facts.
    return summed(signal for one in corpora for signal in one.signals or ())
