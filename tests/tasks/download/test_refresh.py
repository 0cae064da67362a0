"""`--refresh`: conditional requests, what stays and leaves, revisit records, pages declared fresh, damage and kills."""

import itertools
import json
import random
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, need_manifest
from tasks.core.step import Step
from tasks.download.journal import Journal
from tasks.download.ledger import CONTENT, LEDGER, content_of, ledgers_of
from tasks.download.revisit import checked_validator
from tasks.download.shard_writer import changes
from tasks.download.warc import MEMBER
from tests.tasks.download.fetch_helpers import ledger_of, make_urls, pages_of, run, run_again
from tests.tasks.download.refreshed_site import (
    CONSENT,
    DATE,
    Server,
    change,
    fill,
    listed,
    plain,
    records_of,
    refresh,
    revisits,
    urls,
)
from tests.tasks.forked_orders import order_server


def test_pages_stay_change_come_and_go(server: Server, tmp_path: Path) -> None:
    """A refresh equals a first run over the same pages, and asks for no page that stands."""
    root, shards = Folder(tmp_path / "out"), fill(server)
    first = run(root, server.site, shards)
    before = {page.url: page for page in pages_of(root, first)}
    change(server)
    second = refresh(root, server)
    answered = {path: (status, conditional) for path, status, conditional in server.asked}
    assert len(server.asked) == len(answered) == 12  # one request each, none for the forbidden one
    for kind in ("etag", "date", "both"):
        assert (answered[f"/{kind}"], answered[f"/{kind}/changes"]) == ((304, True), (200, True))
    assert answered["/none"] == (200, False) and answered["/comes"] == (200, False)
    found = listed(root, second)
    assert {path: row["change"] for path, row in found.items()} == {
        **{f"/{kind}": "unchanged" for kind in ("etag", "date", "both", "none")},
        **{f"/{kind}/changes": "changed" for kind in ("etag", "date", "both", "none")},
        **{"/goes": "gone", "/comes": "new", "/never": "missing", "/breaks": "unchanged", "/hidden": "gone"},
    }
    assert (found["/goes"]["reason"], found["/hidden"]["reason"]) == ("not_found", "robots_forbidden")
    assert changes(second) == {"new": 1, "changed": 4, "gone": 2, "unchanged": 5, "kept": 0, "missing": 1}
    assert found["/etag"]["sha256"] == found["/etag"]["earlier_sha256"] != found["/etag/changes"]["earlier_sha256"]

    fresh_root = Folder(tmp_path / "fresh")
    fresh = run(fresh_root, server.site, shards)
    assert (second.content, second.fingerprint) == (fresh.content, fresh.fingerprint) != (first.content, "")
    assert plain(pages_of(root, second)) == plain(pages_of(fresh_root, fresh))
    names = [name for name in LEDGER.names if name not in ("fetched_at", "elapsed_ms", "ip")]
    both = ((root, second), (fresh_root, fresh))
    rows, others = ([{name: row[name] for name in names} for row in ledger_of(*made)] for made in both)
    assert rows == others
    assert second.outcome.reasons == fresh.outcome.reasons
    standing = [page for page in pages_of(root, second) if before.get(page.url) == page]  # with the time of their fetch
    assert len(standing) == 5
    assert set((root / "pages").files()) == {"_manifest.json", *(record.name for record in second.outcome.files)}


def test_revisit_records_refer_to_the_pages(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    first = run(root, server.site, fill(server))
    rows = {row["url"]: row for row in ledger_of(root, first)}
    ids = {}
    for record in first.outputs:
        for head, _, _ in records_of(root, record.name):
            ids[head["X-List-URL"]] = (head["WARC-Record-ID"], head["WARC-Date"])
    change(server)
    second = refresh(root, server)
    found = {head["X-List-URL"]: (head, http) for head, http in revisits(root, second)}
    assert {url.partition(".test")[2] for url in found} == {"/etag", "/date", "/both", "/none", "/breaks"}
    for url, (head, http) in found.items():
        identical = url.endswith("/none")
        profile = "identical-payload-digest" if identical else "server-not-modified"
        assert head["WARC-Profile"] == f"http://netpreserve.org/warc/1.1/revisit/{profile}"
        assert (head["WARC-Refers-To"], head["WARC-Refers-To-Date"]) == ids[url]
        assert head["WARC-Refers-To-Target-URI"] == head["WARC-Target-URI"] == url
        assert head["WARC-Payload-Digest"] == f"sha256:{rows[url]['sha256']}"
        assert head["WARC-Record-ID"] not in {one for one, _ in ids.values()}
        assert head["Content-Type"] == "application/http; msgtype=response"
        assert http.get_statuscode() == ("200" if identical else "304")
        assert (head["WARC-Truncated"] == "length") == identical
    assert found["http://a.test/both"][1].get_header("Last-Modified") == DATE


def test_temporary_failures_keep_the_page(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy servers, cut connections, time-outs, and a robots.txt that cannot be read; the next refresh asks again."""
    root, paths = Folder(tmp_path), [f"/{name}" for name in ("503", "501", "cut", "slow", "403")]
    for path in paths:
        server.put(path, f"The page {path}.")
    server.put("/robots", "A page.")
    quick: dict[str, Any] = {"attempts": 1, "max_host_failures": 10}
    first = run(root, server.site, [urls(*paths), urls("/robots", host="b")], **quick)
    before = {page.url: page for page in pages_of(root, first)}
    handlers, site = dict(server.site.handlers), server.site
    site.handlers |= {
        "/503": lambda h: h.answer(b"", status=503),
        "/501": lambda h: h.answer(b"", status=501),
        "/cut": lambda h: h.connection.shutdown(socket.SHUT_RDWR),
        "/403": lambda h: h.answer(b"", status=403),
    }
    site.robots["b.test"] = (500, "")
    second = refresh(root, server, **quick)
    found = listed(root, second)
    assert {path: row["change"] for path, row in found.items()} == {
        **dict.fromkeys(("/503", "/501", "/cut", "/robots"), "kept"),
        "/slow": "unchanged",
        "/403": "gone",
    }
    assert found["/robots"]["reason"] == "robots_unavailable"
    assert pages_of(root, second) == [page for url, page in before.items() if not url.endswith("/403")]
    notes = {row["url"]: row["detail"] for row in ledger_of(root, second) if row["status"] == "ok"}
    assert "http_error: status 503" in notes["http://a.test/503"]
    assert "connection" in notes["http://a.test/cut"], notes
    assert [url for url, note in notes.items() if not note] == ["http://a.test/slow"]
    assert not second.outcome.facts["retryable"] and second.outcome.reasons == {"http_error": 1}
    over = threading.Event()
    site.handlers["/slow"] = lambda h: over.wait(60)

    def brief(self: Any, budget: float, what: str) -> None:
        self.budget, self.what, self.used = 1.0 if what == "the page" else budget, what, 0.0

    with monkeypatch.context() as patch:
        patch.setattr("tasks.download.http_client.TimeBudget.__init__", brief)
        late = listed(root, refresh(root, server, **quick))["/slow"]
    over.set()
    assert (late["change"], late["reason"]) == ("kept", "deadline")
    site.handlers.update(handlers)
    site.robots.clear()
    third = refresh(root, server, **quick)
    assert changes(third) == {"new": 1, "changed": 0, "gone": 0, "unchanged": 5, "kept": 0, "missing": 0}
    assert third.content == first.content and not any(row["detail"] for row in ledger_of(root, third))


def test_nothing_changed_keeps_the_files(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    for name in ("1", "2"):
        server.put(f"/{name}", f"Page {name}.")
    first = run(root, server.site, [urls("/1"), urls("/2")])
    second = refresh(root, server)
    assert second.outputs == first.outputs and second.identity == first.identity
    assert [status for _, status, _ in server.asked] == [304, 304]
    server.put("/2", "Page 2 has changed.")
    third = refresh(root, server)
    assert [one.name for one in third.outputs] == ["part-00000.warc.gz", "part-00001.refresh-2.warc.gz"]
    assert set((root / "pages").files()) == {"_manifest.json", *(record.name for record in third.outcome.files)}


def test_a_longer_list_is_refreshed_by_url(server: Server, tmp_path: Path) -> None:
    """URLs that moved to another shard, new ones, and one that is no longer listed."""
    root = Folder(tmp_path / "out")
    for number in range(8):
        server.put(f"/{number}", f"Page {number}.")
    run(root, server.site, [urls("/0", "/1", "/2"), urls("/3", "/4")])
    new = [urls("/7", "/0", "/1"), urls("/6", "/2", "/4"), urls("/5")]
    make_urls(root, new)
    server.put("/4", "Page 4 has changed.")
    second = refresh(root, server)
    assert changes(second) == {"new": 3, "changed": 1, "gone": 0, "unchanged": 3, "kept": 0, "missing": 0}
    fresh = run(Folder(tmp_path / "fresh"), server.site, new)
    assert second.identity == fresh.identity
    assert plain(pages_of(root, second)) == plain(pages_of(Folder(tmp_path / "fresh"), fresh))
    server.asked.clear()
    assert run(root, server.site, new) == second and not server.asked


def test_an_object_store(server: Server) -> None:
    root = Folder("memory://refresh/out")
    first = run(root, server.site, fill(server))
    change(server)
    second = refresh(root, server)
    assert changes(second)["unchanged"] == 5 and second.content != first.content
    assert len(pages_of(root, second)) == second.outcome.kept


def test_a_corpus_without_validators_is_compared_by_its_pages(server: Server, tmp_path: Path) -> None:
    """The ledger of an older release: plain requests; identical pages are unchanged, and equal those of a first run."""
    root = Folder(tmp_path / "out")
    shards = fill(server)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ledger", "shard_writer"):
            old = [one for one in LEDGER if one.name not in ("content_language", "etag", "last_modified")]
            patch.setattr(f"tasks.download.{name}.schema_of", lambda rows, old=old: pa.schema(old))
        first = run(root, server.site, shards)
    assert "etag" not in ledger_of(root, first)[0]
    change(server)
    second = refresh(root, server)
    assert not any(conditional for _, _, conditional in server.asked)
    assert changes(second) == {"new": 1, "changed": 4, "gone": 2, "unchanged": 5, "kept": 0, "missing": 1}
    profiles = {head["WARC-Profile"].rpartition("/")[2] for head, _ in revisits(root, second)}
    assert profiles == {"identical-payload-digest"}
    assert second.identity == run(Folder(tmp_path / "fresh"), server.site, shards).identity
    third = refresh(root, server)
    assert {status for path, status, _ in server.asked if path == "/etag"} == {304}
    assert changes(third)["unchanged"] == 10


def test_another_language_of_a_page_is_another_content(server: Server, tmp_path: Path) -> None:
    """Content-Language is part of the record, so the steps that read it must run again."""
    root = Folder(tmp_path / "out")
    server.put("/1", "The page.", "none", **{"Content-Language": "en"})
    first = run(root, server.site, [urls("/1")])
    assert content_of(root / "pages", ledgers_of(first.outcome.audit), has_languages=False) != first.content
    server.put("/1", "The page.", "none", **{"Content-Language": "de"})
    second = refresh(root, server)
    assert [page.content_language for page in pages_of(root, second)] == ["de"]
    assert second.identity != first.identity
    assert second.identity == run(Folder(tmp_path / "fresh"), server.site, [urls("/1")]).identity


def test_signals_are_looked_for_again(server: Server, tmp_path: Path) -> None:
    """New signals of robots.txt, of the header of a 304 and of tdmrep.json; and a page that lifts its site's."""
    root = Folder(tmp_path / "out")
    lifting = "<meta name='tdm-reservation' content='0'>"
    for path in ("/agent", "/header", "/stands"):
        server.put(path, f"The page {path}.")
    server.put("/lifts", "A page.")
    server.bodies["/lifts"] = server.bodies["/lifts"].replace("<head>", f"<head>{lifting}")
    server.put("/reserved", "Another page.")
    shards = [urls("/agent", "/header", "/stands"), urls("/lifts", "/reserved", host="b")]
    first = run(root, server.site, shards, **CONSENT)
    assert first.outcome.kept == 5
    server.site.robots["a.test"] = (200, "User-agent: GPTBot\nDisallow: /agent\n")
    server.extra["/header"] = {"X-Robots-Tag": "noai"}
    server.site.handlers["/.well-known/tdmrep.json"] = lambda h: h.answer(
        b'[{"location": "*", "tdm-reservation": 1}]' if "b.test" in h.headers["Host"] else b"[]", "application/json"
    )
    second = refresh(root, server, **CONSENT)
    found = listed(root, second)
    assert {path: (row["change"], row["reason"]) for path, row in found.items()} == {
        "/agent": ("gone", "robots_ai_agent"),
        "/header": ("gone", "noai"),
        "/stands": ("unchanged", ""),
        "/lifts": ("unchanged", ""),
        "/reserved": ("gone", "tdm_reservation"),
    }
    fresh = run(Folder(tmp_path / "fresh"), server.site, shards, **CONSENT)
    assert (second.content, second.outcome.reasons) == (fresh.content, fresh.outcome.reasons)


def test_other_settings_fetch_everything_again(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    server.put("/1", "Page 1.")
    run(root, server.site, [urls("/1")])
    second = refresh(root, server, max_redirects=3)
    assert not changes(second) and server.asked == [("/1", 200, False)]


def test_a_redirect_is_followed_before_the_condition(server: Server, tmp_path: Path) -> None:
    """The condition goes to the page itself; where the redirect leads elsewhere now, the page is fetched."""
    root = Folder(tmp_path)
    server.put("/1", "The same page.")
    server.put("/2", "The same page.")
    server.site.handlers["/move"] = lambda h: h.redirect("/1")
    run(root, server.site, [urls("/move")])
    assert changes(refresh(root, server))["unchanged"] == 1 and server.asked == [("/1", 304, True)]
    server.site.handlers["/move"] = lambda h: h.redirect("/2")
    second = refresh(root, server)
    assert server.asked == [("/2", 200, False)]
    assert [page.final_url for page in pages_of(root, second)] == ["http://a.test/2"]
    assert CONTENT[1] == "final_url" and changes(second)["unchanged"] == 1


def test_the_pages_of_a_retry_are_refreshed_and_the_other_way_round(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    server.put("/1", "Page 1.")
    server.put("/2", "Page 2.")
    stands = server.site.handlers["/2"]
    server.site.handlers["/2"] = server.site.handlers["/broken"]
    run(root, server.site, [urls("/1", "/2")])
    server.put("/1", "Page 1 has changed.")
    second = refresh(root, server)
    assert changes(second) == {"new": 0, "changed": 1, "gone": 0, "unchanged": 0, "kept": 0, "missing": 1}
    server.site.handlers["/2"] = stands
    third = run_again(root, server.site.address, retry_failed=True)
    assert third.outcome.kept == 2 and listed(root, third)["/1"]["change"] == "changed"
    fourth = refresh(root, server)
    assert changes(fourth)["unchanged"] == 2 and len(pages_of(root, fourth)) == 2


def test_validators_that_can_be_sent_back() -> None:
    for value in ('"a"', 'W/"b c"', DATE):
        assert checked_validator(f" {value} ") == value
    for value in (None, "", '"\x85"', "a\r\nb", '"é"', '"' + "x" * 600 + '"', "\udc80"):
        assert checked_validator(value) == "", value


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


def test_a_damaged_archive_is_not_copied(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    for name in ("1", "2"):
        server.put(f"/{name}", f"Page {name}.")
    first = run(root, server.site, [urls("/1", "/2")])
    path = tmp_path / "pages" / first.outputs[0].name
    data = path.read_bytes()
    server.put("/2", "Page 2 has changed.")
    for at in (5, 300, len(data) - 1):  # files of another size are fetched again
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RunError, match="is damaged; remove it"):
            refresh(root, server)
    path.write_bytes(data)
    assert refresh(root, server).outcome.kept == 2


def test_a_page_with_the_first_bytes_of_a_record_is_copied(server: Server, tmp_path: Path) -> None:
    """Bytes that do not compress are stored as they are: the archive seems to have one record more."""
    root = Folder(tmp_path)
    server.put("/1", "Page 1.")
    noise = random.Random(1).randbytes(80_000)
    body = b"<html>" + noise[:40_000] + MEMBER + noise[40_000:]
    server.site.handlers["/2"] = lambda h: h.answer(body, "text/html")
    first = run(root, server.site, [urls("/1", "/2")])
    assert first.outcome.kept == 2 and (root / "pages").read_bytes(first.outputs[0].name).count(MEMBER) == 4
    before = pages_of(root, first)
    server.put("/1", "Page 1 has changed.")
    second = refresh(root, server)
    assert changes(second)["unchanged"] == 1 and pages_of(root, second)[1] == before[1]


AT_PAGE = pytest.param((Journal, "add", 5, RuntimeError), marks=pytest.mark.slow, id="page")
AT_SHARD = pytest.param((Step, "commit_batch", 1, KeyboardInterrupt), id="shard")


@pytest.mark.parametrize("moment", [AT_PAGE, AT_SHARD])
def test_an_interrupted_refresh_goes_on(server: Server, tmp_path: Path, moment: Any) -> None:
    """The earlier download stays valid; no page that was answered is asked for again."""
    root, shards = Folder(tmp_path / "out"), fill(server)
    first = run(root, server.site, shards)
    shutil.copytree(tmp_path / "out", tmp_path / "straight")
    change(server)
    straight = refresh(Folder(tmp_path / "straight"), server)
    owner, name, call, error = moment
    original, calls = getattr(owner, name), itertools.count(1)

    def cut(*args: Any) -> Any:
        if next(calls) == call:
            raise error
        return original(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(error):
        patch.setattr(owner, name, cut)
        refresh(root, server)
    assert need_manifest(root / "pages") == first
    answered = {path for path, _, _ in server.asked}
    again = refresh(root, server)
    assert again.content == straight.content and changes(again) == changes(straight)
    asked = [path for path, _, _ in server.asked]
    assert len(asked) == len(set(asked)) < 12
    if name == "commit_batch":
        assert not answered & set(asked)


@pytest.mark.parametrize("around", ["commit", pytest.param("everything", marks=pytest.mark.exhaustive)])
def test_a_refresh_killed_at_any_instant_goes_on(server: Server, tmp_path: Path, around: str) -> None:
    """SIGKILL at writes and before removals: the next refresh has the outputs of one that was not killed."""
    root, kept = Folder(tmp_path / "out"), tmp_path / "kept"
    first = run(root, server.site, fill(server))
    change(server)
    shutil.copytree(tmp_path / "out", kept)
    straight = refresh(root, server)
    expected, wanted = set((root / "pages").files()), plain(pages_of(root, straight))
    with order_server("tests.tasks.download.killed_downloads") as send:

        def order(**more: Any) -> int:
            shutil.rmtree(tmp_path / "out")
            shutil.copytree(kept, tmp_path / "out")
            return int(send(root=root.url, address=server.site.address, again="refresh", **more)["status"])

        assert order(record=str(tmp_path / "record")) == 0
        counts = json.loads((tmp_path / "record").read_text())
        writes, removals = range(counts["writes"]), range(counts["removals"])
        assert len(writes) >= 8 and len(removals) >= 8
        if around == "commit":  # the manifest is the last write
            writes, removals = writes[-1:], removals[len(removals) // 2 : len(removals) // 2 + 1]
        kills: list[dict[str, Any]] = [
            {"write": number, "instant": instant} for number in writes for instant in ("between", "after")
        ]
        for kill in [*kills, *({"removal": number} for number in removals)]:
            assert order(**kill) == -9, kill
            stands = run_again(root, server.site.address)
            assert stands == first or stands.content == straight.content, kill
            again = refresh(root, server)
            if stands == first:  # else this was one more refresh, of pages that stand
                assert again.content == straight.content and changes(again) == changes(straight), kill
                assert set((root / "pages").files()) == expected, kill
            assert plain(pages_of(root, again)) == wanted, kill
