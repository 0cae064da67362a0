"""The misbehaving site, one a test."""

from collections.abc import Iterator

import pytest

from tests.tasks.site import Site, running_site


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site
