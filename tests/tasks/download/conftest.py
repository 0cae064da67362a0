"""A fresh misbehaving site for each test, and one whose pages have validators."""

from collections.abc import Iterator

import pytest

from tests.tasks.download.refreshed_site import Server
from tests.tasks.web_server import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture
def server(site: Site) -> Server:
    return Server(site)
