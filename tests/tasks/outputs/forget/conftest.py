"""One corpus for the tests of a removal."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.outputs.forget.corpus import run_flow, serve
from tests.tasks.web_server import Site, running_site


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture(scope="session")
def settings(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return serve(site, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def corpus(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("forget") / "out"
    run_flow(out, settings)
    return out


@pytest.fixture
def out(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "out"))
