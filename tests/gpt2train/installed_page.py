"""Fixtures that install the plug-in of a page for a test module, which names the page as `PAGE` and imports both."""

import os
from pathlib import Path

import pytest

from tests.tasks.plugin_page import ROOT, install


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the distribution of the module's page."""
    folder = tmp_path_factory.mktemp("installed")
    install(request.module.PAGE, folder)
    return folder


@pytest.fixture(autouse=True)
def installed_for_all_processes(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a test starts import it."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{installed}")
