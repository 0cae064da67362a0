"""`download.skip_fresh`: pages that their server declares fresh are not requested."""

import shutil
from pathlib import Path

import pytest

from gpt2train.store.manifest import Folder, need_manifest
from tasks.download.shard_writer import changes
from tests.tasks.download.fetch_helpers import ledger_of, pages_of, run
from tests.tasks.download.refreshed_site import CONSENT, Server, listed, refresh, urls


def test_fresh_pages_are_not_requested_if_asked(server: Server, tmp_path: Path) -> None:
    """Pages that the server declares fresh are not requested; robots.txt and tdmrep.json are."""
    root, fields = Folder(tmp_path), {"Cache_Control": "max-age=3600"}
    for path in ("/fresh", "/forbidden", "/moved/target"):
        server.put(path, f"The page {path}.", **fields)
    server.put("/stale", "A page.", **{"Cache_Control": "max-age=0"})
    server.put("/plain", "Another page.")
    server.put("/reserved", "A third page.", **fields)
    server.site.handlers["/moved"] = lambda h: h.redirect("/moved/target")
    shards = [urls("/fresh", "/forbidden", "/moved", "/stale", "/plain"), urls("/reserved", host="b")]
    first = run(root, server.site, shards, **CONSENT)
    stands = {page.url: page for page in pages_of(root, first)}
    for path in ("/fresh", "/stale", "/plain"):
        server.put(path, f"The page {path} has changed.", **server.extra[path])
    server.site.robots["a.test"] = (200, "User-agent: *\nDisallow: /forbidden\n")
    server.site.handlers["/.well-known/tdmrep.json"] = lambda h: h.answer(
        b'[{"location": "*", "tdm-reservation": 1}]' if "b.test" in h.headers["Host"] else b"[]", "application/json"
    )
    shutil.copytree(tmp_path / "pages", tmp_path / "kept")
    second = refresh(root, server, skip_fresh=True, **CONSENT)
    assert {path for path, _, _ in server.asked} == {"/moved/target", "/plain", "/reserved", "/stale"}
    found = {path: row["change"] for path, row in listed(root, second).items()}
    assert found == {
        **{"/fresh": "fresh", "/forbidden": "gone", "/moved": "unchanged", "/stale": "changed", "/plain": "changed"},
        "/reserved": "gone",
    }
    assert changes(second) == {"new": 0, "changed": 2, "gone": 2, "unchanged": 1, "fresh": 1, "kept": 0, "missing": 0}
    (page,) = (page for page in pages_of(root, second) if page.url.endswith("/fresh"))
    assert page == stands[page.url]
    rows = {row["url"]: row for row in ledger_of(root, second)}
    assert rows[page.url]["fresh_until"] and rows[page.url]["etag"] and not rows["http://a.test/plain"]["fresh_until"]

    shutil.rmtree(tmp_path / "pages")
    shutil.move(tmp_path / "kept", tmp_path / "pages")
    third = refresh(root, server, **CONSENT)
    assert listed(root, third)["/fresh"]["change"] == "changed" and "fresh" not in changes(third)


def test_a_confirmed_page_is_fresh_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of a 304 replaces the lifetime. Without `skip_fresh` a shard without changes keeps its files."""
    root = Folder(tmp_path)
    server.put("/1", "Page 1.", **{"Cache_Control": "max-age=60"})
    first = run(root, server.site, [urls("/1")])
    server.extra["/1"] = {"Cache_Control": "max-age=3600"}
    assert refresh(root, server).outputs == first.outputs
    with monkeypatch.context() as patch:
        patch.setattr("tasks.download.fetch.is_fresh", lambda until, now: False)  # an hour later
        before = ledger_of(root, need_manifest(root / "pages"))[0]["fresh_until"]
        second = refresh(root, server, skip_fresh=True)
    assert changes(second)["unchanged"] == 1 and ledger_of(root, second)[0]["fresh_until"] > before
    assert changes(refresh(root, server, skip_fresh=True))["fresh"] == 1 and not server.asked
    server.extra["/1"] = {"Cache_Control": "no-cache"}
    with monkeypatch.context() as patch:
        patch.setattr("tasks.download.fetch.is_fresh", lambda until, now: False)
        assert not ledger_of(root, refresh(root, server, skip_fresh=True))[0]["fresh_until"]
