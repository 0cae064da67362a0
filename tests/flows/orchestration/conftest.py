"""A Prefect server for the tests that need a real one."""

from collections.abc import Iterator

import pytest

from tests.flows.prefect_server import PrefectServer, running_server


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with running_server(tmp_path_factory.mktemp("server") / "prefect") as running:
        yield running
