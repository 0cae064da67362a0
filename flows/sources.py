"""Sources of documents: URL lists, web archives, HTML pages and text files; the embedded demo without any source."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from flows.demo import demo_site
from flows.settings import DataprepSettings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, merge_manifests
from tasks.blacklist.step import blacklist
from tasks.commoncrawl.step import commoncrawl
from tasks.core.input_files import InputFile
from tasks.core.runner import Runner
from tasks.core.url_lists import find_url_lists, read_urls
from tasks.discover.domains import Domain, find_domains
from tasks.discover.step import discover, lists_of
from tasks.download.step import download
from tasks.extract.step import extract
from tasks.sources.documents import Documents, find_documents
from tasks.sources.texts import texts
from tasks.sources.warcs import ArchiveConsent, find_warcs, warcs
from tasks.sources.webpages import webpages

MAX_COUNTED_BYTES = 2**26  # URL lists of more bytes are not counted


class Sources:
    """Input files of a data flow, each kind found and checked once, when it is first used.

    A flow without sources has no files. A file that is missing, or whose content does not match its kind, is a
    `UserError`.
    """

    def __init__(self, settings: DataprepSettings) -> None:
        self._settings = settings

    @cached_property
    def urls(self) -> tuple[InputFile, ...]:
        """Files of `--urls`."""
        return tuple(find_url_lists(self._settings.urls)) if self._settings.urls else ()

    @cached_property
    def url_count(self) -> int | None:
        """Number of URLs in the lists; None without lists, or if they are larger than `MAX_COUNTED_BYTES`."""
        if not self.urls or sum(item.bytes or MAX_COUNTED_BYTES for item in self.urls) > MAX_COUNTED_BYTES:
            return None
        head = self._settings.blacklist.head
        return sum(1 for item in self.urls for _ in itertools.islice(read_urls(item.location), head))

    @cached_property
    def warcs(self) -> tuple[InputFile, ...]:
        """Files of `--warcs`."""
        return tuple(find_warcs(self._settings.warcs)) if self._settings.warcs else ()

    @cached_property
    def documents(self) -> Documents:
        """Files of `--documents`."""
        settings = self._settings
        if not settings.documents:
            return Documents((), ())
        return find_documents(settings.documents, settings.json_key, settings.texts.max_bytes)

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """Domains of `--domains`."""
        return tuple(find_domains(self._settings.domains))

    def check(self) -> None:
        """Find all files."""
        for _ in (self.urls, self.domains, self.warcs, self.documents):
            pass


def documents_of(
    root: Folder, settings: DataprepSettings, sources: Sources, runner: Runner
) -> tuple[Manifest, list[Manifest]]:
    """Run the source steps of every given source, in a fixed order that does not depend on the order of the flags.

    Returns:
        One manifest of all documents, and the manifests of the steps that produced them.
    """
    steps: list[Manifest] = []
    pages: list[Manifest] = []
    files = sources.documents
    found: list[InputFile] = []
    discovered: Manifest | None = None
    if settings.domains:
        options: dict[str, Any] = {"download": settings.download, "connect_to": settings.connect_to}
        options["refresh"] = settings.refresh
        discovered = runner.run_step(discover, root, sources.domains, settings.discover, **options)
        steps.append(discovered)
        found = lists_of(root, discovered, sources.domains)
        if "commoncrawl" in settings.discover.methods:
            given = (discovered, settings.discover, settings.download)
            pages.append(runner.run_step(commoncrawl, root, *given, connect_to=settings.connect_to))
    if settings.urls or (settings.domains and settings.discover.requests_pages) or not settings.has_source:
        with url_source(settings, sources) as (lists, connect_to):
            urls = runner.run_step(blacklist, root, [*lists, *found], settings.blacklist, discovered=discovered)
            options = {"connect_to": connect_to, "retry_failed": settings.retry_failed, "refresh": settings.refresh}
            fetched = runner.run_step(download, root, urls, settings.download, **options)
        steps.append(urls)
        pages.insert(0, fetched)
    if settings.warcs:
        consent = ArchiveConsent(**dict(settings.download.consent), agent=settings.download.agent)
        options = {"blacklist": settings.blacklist, "consent": consent}
        pages.append(runner.run_step(warcs, root, sources.warcs, settings.warc, **options))
    if files.pages:
        pages.append(runner.run_step(webpages, root, files.pages, settings.webpages))
    documents: list[Manifest] = []
    if pages:
        merged = merge_manifests(pages)
        documents.append(runner.run_step(extract, root, merged, settings.extract, clean=settings.clean))
    if files.texts:
        documents.append(runner.run_step(texts, root, files.texts, settings.json_key, settings.texts))
    return merge_manifests(documents), [*steps, *pages, *documents]


@contextlib.contextmanager
def url_source(settings: DataprepSettings, sources: Sources) -> Iterator[tuple[Sequence[InputFile], Mapping[str, str]]]:
    """Yield URL lists and the addresses to connect to (host pattern -> `address:port`).

    They are the user's, or those of the embedded demo site, which is served until the block ends.
    """
    if settings.has_source:
        yield sources.urls, settings.connect_to
        return
    with demo_site() as site:
        yield find_url_lists([site.url_list]), site.connect_to
