"""A fresh server for each test."""

from collections.abc import Iterator

import pytest

from tests.tasks.web_server import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        site.handlers["/"] = lambda h: h.answer(b"", status=404)
        site.handlers["/sitemap.xml"] = lambda h: h.answer(b"", status=404)
        yield site
