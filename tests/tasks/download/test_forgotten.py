"""Forgotten pages that other pages redirect to: refused before any request to them."""

from pathlib import Path

import pytest

from gpt2train.store.manifest import Folder
from tasks.core.forgotten import FORGOTTEN, Forgotten, domain_hash, encode_forgotten, name_of, read_forgotten, url_hash
from tasks.outputs.forget.scan import scan
from tests.tasks.download.fetch_helpers import ledger_of, run, run_again
from tests.tasks.web_server import Site

TARGET = "http://a.test/secret"
LISTED = Forgotten(urls=(url_hash(TARGET),), domains=(domain_hash("gone.test"),))


@pytest.fixture
def redirecting(site: Site) -> Site:
    site.handlers["/secret"] = lambda h: h.answer(b"<p>secret")
    site.handlers["/to-page"] = lambda h: h.redirect(TARGET + "?#part")
    site.handlers["/to-domain"] = lambda h: h.redirect("http://www.gone.test/1")
    site.handlers["/to-hop"] = lambda h: h.redirect("http://b.test/to-page")
    return site


@pytest.mark.parametrize("consent", [False, True])
def test_a_redirect_to_a_forgotten_page_is_refused(redirecting: Site, tmp_path: Path, consent: bool) -> None:
    root = Folder(tmp_path)
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    shards = [["http://b.test/to-page", "http://b.test/to-domain", "http://c.test/to-hop", "http://a.test/2"]]
    manifest = run(root, redirecting, shards, consent={"enabled": consent})
    asked = {(host, path) for (host, path), count in redirecting.hits.items() if count}
    assert not [path for path in asked if path[1].startswith("/secret")]
    assert not [host for host, _ in asked if host.endswith("gone.test")]  # not even for robots.txt
    assert manifest.outcome.reasons == {"forgotten": 3} and manifest.outcome.kept == 1
    ledger = ledger_of(root, manifest)
    assert [row["url"] for row in ledger[:3]] == [name_of(TARGET), name_of("http://www.gone.test/1"), name_of(TARGET)]
    assert not any(row["final_url"] or row["detail"] or row["http_status"] for row in ledger[:3])
    assert scan(root, LISTED, LISTED, ["secret " * 9], ()).traces == []


def test_a_page_that_is_moved_to_a_forgotten_one_is_gone(redirecting: Site, tmp_path: Path) -> None:
    """A page that was fetched before the removal of another, and redirects to it at the refresh."""
    root, moved = Folder(tmp_path), "http://b.test/moved"
    redirecting.handlers["/moved"] = lambda h: h.answer(b"<p>here")
    assert run(root, redirecting, [[moved, "http://a.test/2"]]).outcome.kept == 2
    (tmp_path / FORGOTTEN).write_bytes(encode_forgotten(LISTED))
    redirecting.handlers["/moved"] = redirecting.handlers["/to-page"]
    manifest = run_again(root, redirecting.address, refresh=True)
    assert redirecting.hits["a.test", "/secret"] == 0 and manifest.outcome.reasons == {"forgotten": 1}
    assert read_forgotten(root) == LISTED and scan(root, LISTED, LISTED, ["secret " * 9], ()).traces == []
