"""The discover step: domains -> lists of URLs with how each was found, and captures of Common Crawl.

    discover/part-00000.parquet            URLs of the first domain (`found.DISCOVERED`), a list for the blacklist
    discover/captures/part-00000.parquet   pages of it in Common Crawl (`cdx.CAPTURES`), for the step commoncrawl
    discover/rejected/part-00000.parquet   sitemaps and URLs that are not used, with their reasons

One batch per domain. All batches share one event loop, so that the rate limits per host hold over all domains; within
a domain, requests follow one another, so that the lists have one order.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpt2train.errors import RunError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.core.forgotten import REASON, forgotten_beside, name_of, read_forgotten
from tasks.core.input_files import InputFile
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, write_rows
from tasks.core.step import Step
from tasks.discover.cdx import CAPTURES, find_captures, find_crawls
from tasks.discover.domains import Domain
from tasks.discover.found import DISCOVERED, FoundUrls
from tasks.discover.settings import DiscoverSettings
from tasks.download.settings import DownloadSettings

if TYPE_CHECKING:
    from tasks.discover.session import Session

CAPTURE_LISTS = "captures/"
AT_ONCE = 16  # domains


def discover(
    root: Folder,
    domains: Sequence[Domain],
    settings: DiscoverSettings,
    runner: Runner,
    download: DownloadSettings | None = None,
    connect_to: Mapping[str, str] | None = None,
    refresh: bool = False,
) -> Manifest:
    """Find the URLs of domains. `download` has the rate limits; it and `connect_to` are not part of the fingerprint.

    With `refresh` a finished search is repeated, since sites have new pages; one that was killed is completed.

    Raises:
        RunError: No URL was found, or the index of Common Crawl cannot be read.
    """
    named = [[domain.host, domain.scheme, domain.port] for domain in domains]
    forgotten = read_forgotten(root)
    inputs = {"domains": digest(named), **forgotten.inputs}
    step = Step(root, "discover", version=6, parameters=settings, inputs=inputs)
    if refresh and runner.is_dry_run:
        step.fingerprint, step.inputs = "", {}  # the dry run shows the step as one that will run
    if done := runner.finished(step):
        if not refresh:
            return done
        runner.skipped.discard(step.name)
        step.begin()
    from tasks.discover.session import Session  # imports aiohttp (0.3 s)

    limits = download or DownloadSettings()
    with (
        Session(limits, connect_to or {}, runner.stopping, forgotten=forgotten) as sites,
        Session(limits, connect_to or {}, runner.stopping, obey_robots=False) as index,
    ):
        crawls = index.run(find_crawls(index, settings)) if "commoncrawl" in settings.methods else ()
        args = (settings, sites, index, crawls)
        batches = runner.batches(step, "part", list(domains), discover_domain, *args, where="thread", at_once=AT_ONCE)
    total = Outcome.total(batches)
    if not total.kept:
        counts = step.reasons_of(total) or "no sitemap, no feed"
        remedy = "check the domains and the network, or choose other discover.methods"
        raise RunError(f"no URL was found for {count_of(len(domains), 'domain')} ({counts}); {remedy}")
    return step.commit(total)


def discover_domain(
    folder: Folder,
    name: str,
    domain: Domain,
    settings: DiscoverSettings,
    sites: "Session",
    index: "Session",
    crawls: tuple[str, ...],
) -> Outcome:
    """Find the URLs of one domain and write them."""
    found = FoundUrls(domain, settings.subdomains, settings.max_urls)
    captures = []
    forgotten = forgotten_beside(folder)
    if forgotten.matches_host(domain.host):
        found.reject(name_of(str(domain.starts[0])), "", REASON, "")
    else:
        if settings.requests_pages:
            sites.run(_find(sites, found, settings))
        if "commoncrawl" in settings.methods:
            captures = index.run(find_captures(index, crawls, found, settings))
    if forgotten:
        found.drop_forgotten(forgotten)
        captures = [row for row in captures if not found.is_dropped(row, forgotten)]
    outputs = []
    if found.rows:
        outputs.append(write_rows(folder, f"{name}.parquet", list(found.rows.values()), DISCOVERED))
    if captures:
        outputs.append(write_rows(folder, f"{CAPTURE_LISTS}{name}.parquet", captures, CAPTURES))
    kept, dropped = len(found.rows) + len(captures), found.reasons.total()
    return Outcome(
        outputs=tuple(outputs),
        rejected=(write_rows(folder, f"rejected/{name}.parquet", found.rejected, REJECTED),) if found.rejected else (),
        seen=kept + dropped,
        kept=kept,
        reasons=dict(sorted(found.reasons.items())),
        facts={"captures": len(captures)} if captures else {},
    )


async def _find(session: "Session", found: FoundUrls, settings: DiscoverSettings) -> None:
    from tasks.discover.page_links import find_by_links, find_in_feeds
    from tasks.discover.sitemaps import find_in_sitemaps

    for address in found.domain.starts:
        start = await session.fetch(str(address))
        # Any answer to the request shows that the scheme is served; robots.txt may forbid the start page alone.
        if start.http_status is not None or start.reason == "robots_forbidden":
            break
    for method in settings.methods:
        if method == "sitemaps":
            await find_in_sitemaps(session, address, found, settings)
        elif method != "commoncrawl" and start.body is None:
            found.reject(str(address), str(address), start.reason, start.detail)
        elif method == "feeds":
            await find_in_feeds(session, start, found, settings)
        elif method == "links":
            await find_by_links(session, start, found, settings)


def lists_of(root: Folder, found: Manifest, domains: Sequence[Domain]) -> list[InputFile]:
    """Return the lists of URLs of a finished discovery, one per domain, for the blacklist."""
    folder, aliases = root / found.folder, read_forgotten(root).aliases
    return [
        InputFile(
            folder.location(record.name),
            f"discover/{domains[int(record.name.removesuffix('.parquet').rpartition('-')[2])].name}",
            record.bytes,
            aliases.get(record.sha256, record.sha256),
        )
        for record in found.outputs
        if not record.name.startswith(CAPTURE_LISTS)
    ]
