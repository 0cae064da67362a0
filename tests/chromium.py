"""Headless Chromium for the tests of web pages, driven by selenium."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
)


@contextlib.contextmanager
def chromium(folder: Path, size: str = "1400,900", **logs: str) -> Iterator[Any]:
    """A browser with its console's log and `logs`; the test is skipped where there is none.

    Args:
        folder: folder for its profile.
        size: width and height of its window.
        logs: more kinds of logs and their levels, as selenium calls them.
    """
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: pip install 'gpt2train[peers]'"
    )
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (found and driver):
        pytest.skip("no Chromium with its chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", **logs})
    for flag in (*FLAGS, f"window-size={size}", f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def until(condition: Callable[[], object], what: str = "", seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)
