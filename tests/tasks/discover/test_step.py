"""The step as a whole: searched again by a refresh, and killed in the middle."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpt2train.store.folder import Folder
from tests.tasks.discover.site_files import run, serve, urls, urlset
from tests.tasks.web_server import Site

A, B = "http://a.test", "http://b.test"
SEARCH = """
import sys
from pathlib import Path
from tests.tasks.discover.site_files import run

class Address:
    address = sys.argv[2]

run(Path(sys.argv[1]), Address, sys.argv[3:], methods=["sitemaps"])
"""


def test_a_refresh_finds_new_urls_and_completes_a_killed_one(site: Site, tmp_path: Path) -> None:
    serve(site, "/sitemap.xml", urlset([f"{A}/1", f"{A}/2"]))
    first = run(tmp_path, site, [A], methods=["sitemaps"])
    serve(site, "/sitemap.xml", urlset([f"{A}/2", f"{A}/3"]))
    assert run(tmp_path, site, [A], methods=["sitemaps"]) == first  # cached
    again = run(tmp_path, site, [A], refresh=True, methods=["sitemaps"])
    assert urls(tmp_path, again) == [f"{A}/2", f"{A}/3"]
    fresh = run(tmp_path / "fresh", site, [A], methods=["sitemaps"])
    assert (again.identity, again.fingerprint) == (fresh.identity, first.fingerprint)
    # A kill after the first batch leaves its record and no manifest: it is not searched again, also with --refresh.
    (tmp_path / "discover/_manifest.json").unlink()
    assert run(tmp_path, site, [A], refresh=True, methods=["sitemaps"]).identity == again.identity


@pytest.mark.slow
def test_a_search_killed_by_sigkill_is_completed(site: Site, tmp_path: Path) -> None:
    asked, killed = threading.Event(), threading.Event()

    def hold(handler: object) -> None:
        asked.set()
        killed.wait(60)

    serve(site, "/sitemap.xml", urlset([f"{A}/1", f"{A}/2"]))
    site.robots["b.test"] = (200, f"Sitemap: {B}/map.xml\n")
    site.handlers["/map.xml"] = hold
    search = [sys.executable, "-c", SEARCH, str(tmp_path), site.address, A, B]
    process = subprocess.Popen(search)
    try:
        assert asked.wait(60)
        folder = Folder(tmp_path) / "discover"
        while not any(name.startswith("_batches/part-00000") for name in folder.sizes()):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        killed.set()
    hits = site.hits["a.test", "/sitemap.xml"]
    serve(site, "/map.xml", urlset([f"{B}/9"]))
    found = run(tmp_path, site, [A, B], methods=["sitemaps"])
    assert urls(tmp_path, found) == [f"{A}/1", f"{A}/2", f"{B}/9"]
    assert site.hits["a.test", "/sitemap.xml"] == hits  # what was found is not asked for again
    assert found.identity == run(tmp_path / "fresh", site, [A, B], methods=["sitemaps"]).identity
