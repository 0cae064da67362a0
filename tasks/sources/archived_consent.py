"""Consent of a page in a web archive: the signals of its header and its tags, as they were when it was fetched.

An archive has no answer for robots.txt and tdmrep.json of the page's site, so that their signals are not known.
"""

from multidict import CIMultiDict

from tasks.download.consent.page_tags import page_tags
from tasks.download.consent.settings import ConsentSettings
from tasks.download.consent.signals import Consent, SiteSignals, consent
from tasks.download.response_body import FetchRejectedError
from tasks.download.warc import Page
from tasks.sources.http_payload import split_record
from tasks.sources.warc_records import Record


def check_consent(page: Page, record: Record, settings: ConsentSettings, agent: str) -> Consent:
    """Return the signals of an archived page of a record.

    Raises:
        FetchRejectedError: The page is not to be used; the reason is the signal.
    """
    head, _ = split_record(record)
    tags = page_tags(page.body, page.charset)
    found = consent(settings, agent, page.final_url, SiteSignals(), CIMultiDict(head.headers), tags)
    if found.refusal is not None:
        raise FetchRejectedError(found.refusal.name, found.refusal.detail)
    return found
