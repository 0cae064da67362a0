"""A fresh misbehaving site for each test."""

from collections.abc import Iterator

import pytest

from tests.tasks.web_server import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site
