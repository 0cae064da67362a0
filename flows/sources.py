"""Sources of documents: URL lists, web archives, HTML pages and text files; the embedded demo without any source."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.demo import demo_site
from flows.orchestration.task_runner import run_step
from flows.settings import DataprepSettings
from tasks.blacklist.step import blacklist
from tasks.core.runner import Runner
from tasks.core.step import Manifest
from tasks.core.storage import Folder
from tasks.core.url_lists import find_url_lists
from tasks.download.step import download
from tasks.extract.step import extract
from tasks.sources.documents import Documents, find_documents
from tasks.sources.merge_manifests import merge_manifests
from tasks.sources.texts import texts
from tasks.sources.warcs import find_warcs, warcs
from tasks.sources.webpages import webpages


def documents_of(root: Folder, settings: DataprepSettings, runner: Runner) -> tuple[Manifest, list[Manifest]]:
    """Run the source steps of every given source, in a fixed order that does not depend on the order of the flags.

    Returns:
        One manifest of all documents, and the manifests of the steps that produced them.
    """
    steps: list[Manifest] = []
    pages: list[Manifest] = []
    files = find_document_files(settings)
    if settings.urls or not settings.has_source:
        with url_source(settings) as source:
            urls = run_step(blacklist, root, find_url_lists(source.urls), settings.blacklist, runner=runner)
            options: dict[str, Any] = {"connect_to": source.connect_to, "retry_failed": settings.retry_failed}
            fetched = run_step(download, root, urls, settings.download, runner=runner, **options)
        steps.append(urls)
        pages.append(fetched)
    if settings.warcs:
        archives = find_warcs(settings.warcs)
        pages.append(run_step(warcs, root, archives, settings.warc, runner=runner, blacklist=settings.blacklist))
    if files.pages:
        pages.append(run_step(webpages, root, files.pages, settings.webpages, runner=runner))
    documents: list[Manifest] = []
    if pages:
        documents.append(
            run_step(extract, root, merge_manifests(pages), settings.extract, runner=runner, clean=settings.clean)
        )
    if files.texts:
        documents.append(run_step(texts, root, files.texts, settings.json_key, settings.texts, runner=runner))
    return merge_manifests(documents), [*steps, *pages, *documents]


def find_document_files(settings: DataprepSettings) -> Documents:
    """Files that `--documents` names; none if it is not given.

    Raises:
        UserError: a file is missing, or its content does not match its name.
    """
    if not settings.documents:
        return Documents((), ())
    return find_documents(settings.documents, settings.json_key, settings.texts.max_bytes)


def check_sources(settings: DataprepSettings) -> None:
    """Check the sources before the flow starts.

    Raises:
        UserError: a file is missing, or its content does not match its name.
    """
    if settings.urls:
        find_url_lists(settings.urls)
    if settings.warcs:
        find_warcs(settings.warcs)
    find_document_files(settings)


@dataclass(frozen=True)
class UrlSource:
    """Lists of URLs, and the hosts that are reached at other addresses than DNS gives.

    Attributes:
        urls: files or addresses of the lists.
        connect_to: host pattern -> `address:port`.
    """

    urls: Sequence[str]
    connect_to: Mapping[str, str]


@contextlib.contextmanager
def url_source(settings: DataprepSettings) -> Iterator[UrlSource]:
    """Yield the user's URL lists, or those of the embedded demo site, which is served until the block ends."""
    if settings.urls:
        yield UrlSource(settings.urls, settings.connect_to)
        return
    with demo_site() as site:
        yield UrlSource([site.url_list], site.connect_to)
