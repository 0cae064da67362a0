"""Where documents come from: lists of URLs, web archives, pages and texts in files; the embedded demo without any."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.demo import demo_site
from flows.run.orchestrate import run_step
from flows.settings import DataprepSettings
from tasks.blacklist import blacklist
from tasks.download import download
from tasks.extract import extract
from tasks.runner import Runner
from tasks.sources.documents import Documents, find_documents
from tasks.sources.texts import texts
from tasks.sources.together import together
from tasks.sources.warcs import find_warcs, warcs
from tasks.sources.webpages import webpages
from tasks.steps import Manifest
from tasks.storage import Folder
from tasks.urls import find_url_lists


def documents_of(root: Folder, settings: DataprepSettings, runner: Runner) -> tuple[Manifest, list[Manifest]]:
    """The documents of every source that is given, in this order whatever the order of the flags.

    Returns:
        The documents as one input, and the manifests of the steps that they took.
    """
    steps: list[Manifest] = []
    pages: list[Manifest] = []
    loose = find_loose(settings)
    if settings.urls or not settings.has_source:
        with site_of(settings) as site:
            urls = run_step(blacklist, root, find_url_lists(site.urls), settings.blacklist, runner=runner)
            options: dict[str, Any] = {"connect_to": site.connect_to, "retry_failed": settings.retry_failed}
            fetched = run_step(download, root, urls, settings.download, runner=runner, **options)
        steps.append(urls)
        pages.append(fetched)
    if settings.warcs:
        archives = find_warcs(settings.warcs)
        pages.append(run_step(warcs, root, archives, settings.warc, runner=runner, blacklist=settings.blacklist))
    if loose.pages:
        pages.append(run_step(webpages, root, loose.pages, settings.webpages, runner=runner))
    documents: list[Manifest] = []
    if pages:
        documents.append(
            run_step(extract, root, together(pages), settings.extract, runner=runner, clean=settings.clean)
        )
    if loose.texts:
        documents.append(run_step(texts, root, loose.texts, settings.json_key, settings.texts, runner=runner))
    return together(documents), [*steps, *pages, *documents]


def find_loose(settings: DataprepSettings) -> Documents:
    """The files that `--documents` names; none where it is not given.

    Raises:
        UserError: a file is not there, or is not what its name says.
    """
    if not settings.documents:
        return Documents((), ())
    return find_documents(settings.documents, settings.json_key, settings.texts.max_bytes)


def check_sources(settings: DataprepSettings) -> None:
    """Find before anything starts what is wrong with the sources.

    Raises:
        UserError: a file is not there, or is not what its name says.
    """
    if settings.urls:
        find_url_lists(settings.urls)
    if settings.warcs:
        find_warcs(settings.warcs)
    find_loose(settings)


@dataclass(frozen=True)
class Site:
    """Lists of URLs, and which hosts are reached elsewhere than their names say."""

    urls: Sequence[str]
    connect_to: Mapping[str, str]


@contextlib.contextmanager
def site_of(settings: DataprepSettings) -> Iterator[Site]:
    """The user's lists, or the embedded demo site for as long as it is needed."""
    if settings.urls:
        yield Site(settings.urls, settings.connect_to)
        return
    with demo_site() as site:
        yield Site([site.url_list], site.connect_to)
