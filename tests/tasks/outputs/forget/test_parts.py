"""Parts of a removal: forms of URLs and domains, contents of files, lists of URLs that the discovery has found."""

import bz2
import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import MANIFEST, Folder, Outcome, digest
from tasks.core.forgotten import REASON, Forgotten, domain_hash, name_of, read_forgotten, url_hash, url_key
from tasks.core.reject_limits import LimitSettings, check_reject_rate
from tasks.core.shards import REJECTED, read_rows, rejected_row, write_rows, write_table
from tasks.core.step import Step
from tasks.discover.cdx import CAPTURES
from tasks.discover.domains import find_domains
from tasks.discover.found import DISCOVERED, FoundUrls
from tasks.discover.step import lists_of
from tasks.download.host_stats import HOSTS, SIGNALS
from tasks.download.ledger import CONSENT, LEDGER
from tasks.download.warc import EMPTY, Page, encode_head, encode_record
from tasks.outputs.forget.command import forget
from tasks.outputs.forget.decode import pieces
from tasks.outputs.forget.plan import narrowed
from tasks.outputs.forget.rewrite import rewrite_step
from tasks.outputs.forget.scan import Searcher, scan
from tasks.outputs.forget.targets import domain_of, read_targets, selection_of
from tests.tasks.cloze.test_step import story


def test_urls_are_compared_in_one_form() -> None:
    keys = {
        "HTTP://User:pw@A.Example.:80/x/%7Eb?q=1#part": "//a.example/x/~b?q=1",
        **{"https://a.example": "//a.example/", "http://a.example:8080/ä": "//a.example:8080/%C3%A4"},
        **{"http://bücher.example/": "//xn--bcher-kva.example/", "http://\u2603.example/": "//xn--n3h.example/"},
        **{"www.A.example/x": "//www.a.example/x", "a.example:8080/x": "//a.example:8080/x"},
    }
    same = (" //a.example/x", "ftp://me@a.example/x", "https:a.example/x", "http:///a.example/x")
    keys |= dict.fromkeys((*same, "http:\\\\a.example\\x"), "//a.example/x")
    files = ("notes/a.html", "page.html", "c.jsonl#13", "/data/a.example/x", "file:///a.example/x", "../a.example")
    keys |= {name: name for name in (*files, "http://[", "mailto:me@a.example")}
    assert {url: url_key(url) for url in keys} == keys


def test_a_domain_means_its_subdomains_alone() -> None:
    listed = selection_of(["B\u00fccher.example."])
    for host, is_listed in (("xn--bcher-kva.example", True), ("w.x.xn--bcher-kva.example", True), ("example", False)):
        assert listed.matches(f"https://{host}:8443/a?b") == listed.matches_host(host) == is_listed
    assert not listed.matches("https://another-xn--bcher-kva.example/", "", None)
    assert not Forgotten().matches("https://a.example/") and Forgotten().inputs == {}
    assert selection_of(["\u2603.example"]).matches("http://www.\u2603.example/", "http://xn--n3h.example/x")
    for url in ("w.a.example/x", "//a.example/x", "ftp://a.example/x", "https:a.example/x", "http:\\\\a.example\\x"):
        assert selection_of(["a.example"]).matches(url)
    assert domain_of("https://a.example") is None and domain_of("127.0.0.1") == "127.0.0.1"


@given(st.text(max_size=40))
def test_any_text_can_be_listed(text: str) -> None:
    listed = Forgotten(urls=(url_hash(text),))
    assert listed.matches(text) == bool(text)
    assert not listed.matches(name_of(text)) or text.startswith(f"{REASON}:")
    assert text not in listed.model_dump_json() or len(text) < 8


def test_a_target_with_the_form_of_a_domain_may_be_a_file() -> None:
    found = narrowed(["a.test", "page.html"], ["http://sub.a.test/1", "page.html"])
    assert found == Forgotten(urls=(url_hash("page.html"),), domains=(domain_hash("a.test"),))


def test_targets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\ufeffhttp://a.test/1\n\n# no\n a.test \r\nhttp://a.test/1\n")
    assert read_targets([str(tmp_path / "list"), "b.test"]) == ["http://a.test/1", "a.test", "b.test"]
    long = "www.a.test/" + "x" * 300  # no name of a file
    assert read_targets([long]) == [long]
    with pytest.raises(UserError, match="no URL"):
        read_targets(["x" * 9000])


TEXT = story("Tilda")


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.jsonl", "a.html", "a.gz", "a.bz2", "a.xz", "a.parquet", "a.x"])
def test_words_are_found_in_any_file(tmp_path: Path, name: str) -> None:
    path, data = tmp_path / name, TEXT.encode()
    written = {
        **{".gz": gzip.compress(b"one member") + gzip.compress(data), ".bz2": bz2.compress(data)},
        **{".xz": lzma.compress(data), ".txt": data.upper(), ".x": data.upper()},
        ".html": "".join(f"<b>{word}</b>&#32;" for word in TEXT.split()).encode(),
    }
    path.write_bytes(written.get(path.suffix, json.dumps({"deep": [{"text": TEXT}]}).encode()))
    if name == "a.parquet":
        pq.write_table(pa.table({"n": [1], "deep": [[{"text": TEXT}]]}), path)
    for words, found in ((TEXT, [name]), ("nine words that stand in none of these files here", [])):
        assert [trace.file for trace in scan(Folder(tmp_path), Forgotten(), Forgotten(), [words]).traces] == found


def test_a_mention_of_a_page_is_no_trace_but_a_copy_is_reported(tmp_path: Path) -> None:
    rows = [{"url": "http://b.test/", "text": f"{TEXT} See http://a.test/1."}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "copy.txt").write_text(TEXT)
    wanted = selection_of(["http://a.test/1"])
    found = scan(Folder(tmp_path), wanted, wanted, [TEXT])
    assert found.traces == [] and found.mirrors == ["http://b.test/"]
    (tmp_path / "note.txt").write_text("(https://a.test/1), http://a.test/10")
    traces = scan(Folder(tmp_path), wanted, wanted, [TEXT]).traces
    assert [trace.what for trace in traces] == ["a URL: https://a.test/1),"]
    searcher = Searcher(wanted, wanted, [])
    assert searcher.address(["http://a.test/10 a.test/1"]) is None


def test_a_file_that_cannot_be_read_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "tokens.bin").write_bytes(b"\1\0")
    (tmp_path / "tokens.idx").write_bytes(b"MMIDIDX")
    traces = scan(Folder(tmp_path), Forgotten(), Forgotten(), []).traces
    found = [(trace.file, trace.what[:14]) for trace in traces]
    assert found == [(name, "cannot be read") for name in ("a.parquet", "tokens.bin")]
    assert list(pieces(Folder(tmp_path), "tokens.idx"))


def test_forgotten_rows_do_not_count_as_rejected() -> None:
    limits = LimitSettings(min_rows=1, texts=0.5)
    check_reject_rate(limits, "texts", "x", 10, {REASON: 8, "empty": 1})
    check_reject_rate(limits, "texts", "x", 10, {REASON: 10})
    with pytest.raises(RunError, match="rejected 2 of 2 rows"):
        check_reject_rate(limits, "texts", "x", 10, {REASON: 8, "empty": 2})


def test_a_rewriting_that_a_kill_kept_from_its_manifest_keeps_the_reasons(tmp_path: Path) -> None:
    """The rows are gone from the output then, and only the file that no manifest names has the reason."""
    root = Folder(tmp_path)
    step = Step(root, "blacklist", version=1, parameters={}, inputs={}, folder="urls")
    rows = [{"url": f"http://a.test/{number}", "source": "list"} for number in (1, 2)]
    shards = tuple(write_table(step.folder, f"{name}.parquet", pa.Table.from_pylist(rows)) for name in "ab")
    made = step.commit(Outcome(outputs=shards, seen=4, kept=4))
    before = step.folder.read_bytes(MANIFEST)
    wanted = Forgotten(urls=(url_hash("http://a.test/2"),))
    rewrite_step(root, made, wanted, {})
    after = {name: step.folder.read_bytes(name) for name in step.folder.files()}
    assert {"rejected/a.parquet", "rejected/b.parquet"} <= after.keys()
    step.folder.write_bytes(MANIFEST, before)
    write_rows(step.folder, "rejected/c.parquet", [rejected_row(rows[0], "empty")], REJECTED)  # of another run
    rewrite_step(root, made, wanted, {})
    assert {name: step.folder.read_bytes(name) for name in step.folder.files()} == after


def page(url: str, final: str, text: str) -> Page:
    digest_of = hashlib.sha256(text.encode()).hexdigest()
    return Page(url, final, "text/html", None, text.encode(), "2026-01-01T00:00:00Z", digest_of, "cc")


def test_discovered_lists_keep_their_identity_for_later_steps(tmp_path: Path) -> None:
    """Without the aliases the step after the discovery, and with it the whole download, would be done again."""
    root = Folder(tmp_path)
    found = FoundUrls(find_domains(["a.test"])[0], True, 100)
    rows = [
        {"url": f"http://a.test/{n}", "domain": "a.test", "method": "link", "found_in": f"http://a.test/{n - 1}"}
        | {"depth": 1, "modified": None}
        for n in range(1, 4)
    ]
    filled = {field.name: 0 if "int" in str(field.type) else "x" for field in CAPTURES}
    captures = [filled | {"url": f"http://a.test/{n}"} for n in (2, 9)]
    step = Step(root, "discover", version=1, parameters={}, inputs={"domains": digest(["a.test"])})
    records = (
        write_rows(step.folder, "part-00000.parquet", rows, DISCOVERED),
        write_rows(step.folder, "captures/part-00000.parquet", captures, CAPTURES),
    )
    made = step.commit(Outcome(outputs=records, seen=5, kept=5, facts={"captures": 2}))
    fetched = Step(root, "commoncrawl", version=1, parameters={}, inputs={"discover": made})
    pages = [page("http://a.test/2", "http://a.test/2", TEXT), page("http://a.test/9", "http://a.test/9", "other")]
    data = encode_head("part-00000.warc.gz", "2026-01-01T00:00:00Z") + b"".join(map(encode_record, pages))
    fetched.folder.write_bytes("part-00000.warc.gz", data)
    archive = fetched.folder.record("part-00000.warc.gz", rows=2)
    fetched.commit(Outcome(outputs=(archive,), seen=2, kept=2, facts={"bytes": len(TEXT) + 5}))
    [before] = lists_of(root, made, [found.domain])

    forget(("http://a.test/2",), output=str(tmp_path), yes=True)
    rewritten = json.loads((tmp_path / "discover/_manifest.json").read_text())
    assert (rewritten["outcome"]["kept"], rewritten["outcome"]["reasons"]) == (3, {REASON: 2})
    assert rewritten["outcome"]["facts"] == {"captures": 1}
    left = list(read_rows(root / "discover", "part-00000.parquet"))
    assert [row["url"] for row in left] == ["http://a.test/1", "http://a.test/3"]
    assert left[1]["found_in"] == name_of("http://a.test/2")
    crawled = json.loads((tmp_path / "commoncrawl/_manifest.json").read_text())
    assert crawled["inputs"]["discover"] == f"{rewritten['fingerprint']}:{rewritten['content']}"
    assert crawled["outcome"]["facts"] == {"bytes": 5} and crawled["outcome"]["reasons"] == {REASON: 1}
    made = made.model_copy(update={"outcome": Outcome.model_validate(rewritten["outcome"])})
    [after] = lists_of(root, made, [found.domain])
    assert after.identity == before.identity
    assert len(read_forgotten(root).aliases) == 2


def test_the_discovery_drops_what_is_listed() -> None:
    [domain] = find_domains(["a.test"])
    found = FoundUrls(domain, True, 100)
    start = domain.starts[0]
    first = found.add("/1", "link", start, 1)
    assert first is not None
    found.add("/2", "link", first, 1)
    found.add("http://b.test/", "link", first, 1)
    found.drop_forgotten(selection_of(["a.test/1", f"https://a.test{first.path}", "b.test"]))
    assert [row["found_in"] for row in found.rows.values()] == [name_of("http://a.test/1")]
    assert found.reasons == {REASON: 2, "other_host": 0}
    assert not any("a.test/1" in str(row) or "b.test" in str(row["url"]) for row in found.rejected)


def test_mentions_in_settings_and_links_do_not_stop_a_removal(tmp_path: Path) -> None:
    """A contact address of the crawler, a license on the domain, the detail of another host's rejected row."""
    out = tmp_path / "a.test/out"  # a folder with the name of the domain
    root, ledger = Folder(out), pa.schema([*LEDGER, *CONSENT])
    failed = {"source": "a.test/list", "final_url": "", "status": "failed", "reason": "dns", "detail": "", "bytes": 0}
    rows = [
        failed | {"url": f"http://{host}/1", "retryable": False, "licenses": [f"http://{other}/license"], "signals": []}
        for host, other in (("a.test", "c.test"), ("b.test", "a.test"))
    ]
    step = Step(root, "download", version=4, parameters={"user_agent": "x (+http://a.test)"}, inputs={}, folder="pages")
    step.folder.write_bytes("part-00000.warc.gz", EMPTY)
    records = (
        write_rows(step.folder, "ledger/part-00000.parquet", rows, ledger),
        write_table(step.folder, "hosts.parquet", HOSTS.empty_table()),
        write_table(step.folder, "consent.parquet", SIGNALS.empty_table()),
    )
    archive = step.folder.record("part-00000.warc.gz", rows=0)
    dropped = [rejected_row(row, "dns", "a.test has no address") for row in rows]
    rejected = write_rows(step.folder, "rejected/part-00000.parquet", dropped, REJECTED)
    step.commit(Outcome(outputs=(archive,), audit=records, rejected=(rejected,), seen=2, reasons={"dns": 2}))
    (out / "runs").mkdir()
    (out / "runs/note.json").write_text(json.dumps({"output": str(out)}))
    (out / "runs/events.out.tfevents").write_bytes(b"\0\1\2" + TEXT.encode() + b"\0\xff")
    (out / "runs/note.txt").write_text("www.a.test says")

    forget(("a.test",), output=str(out), yes=True)
    left = list(read_rows(root / "pages", "ledger/part-00000.parquet"))
    assert [row["url"] for row in left] == [name_of("http://a.test/1"), "http://b.test/1"]
    assert not any(row["licenses"] for row in left)
    assert [row["host"] for row in read_rows(root / "pages", "hosts.parquet")] == ["", "b.test"]
    made = json.loads((out / "pages/_manifest.json").read_text())
    assert made["outcome"]["reasons"] == {"dns": 1, REASON: 1}
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["events.out.tfevents", "note.json"]
    assert [trace.file for trace in scan(root, Forgotten(), Forgotten(), [TEXT]).traces] == ["runs/events.out.tfevents"]
