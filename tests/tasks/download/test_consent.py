"""Consent signals in whole downloads from a server on loopback: reasons, ledger, table, request order, old corpora."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder
from tasks.core.runner import Runner
from tasks.download.consent.tally import OTHERS, tally_signals
from tasks.download.ledger import LEDGER, ledgers_of
from tasks.report.findings import consent_signals
from tasks.report.step import REPORT, ReportSettings, report
from tests.tasks.corpus import rejected_of
from tests.tasks.download.fetch_helpers import fetch, ledger_of, run, run_again
from tests.tasks.web_server import PAGE, Handler, Site

TDM = "/.well-known/tdmrep.json"
ON = {"consent": {}}


def tag(text: bytes) -> Any:
    return lambda h: h.answer(b"<html><head>" + text + b"</head><body><p>text", "text/html")


@pytest.fixture
def signalling(site: Site) -> Site:
    """A site with every signal, each on a host or page of its own."""
    site.robots["gptbot.test"] = (200, "User-agent: GPTBot\nDisallow: /closed\n")
    site.robots["cloudflare.test"] = (200, "User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n")
    site.robots["rsl.test"] = (200, "License: https://rsl.test/rsl.xml\n")

    def tdm(h: Handler) -> None:
        rules = [{"location": "/reserved/", "tdm-reservation": 1}]
        h.answer(json.dumps(rules).encode() if h.headers["Host"] == "tdm.test" else b"", "application/json")

    site.handlers |= {
        TDM: tdm,
        "/noai": lambda h: h.answer(PAGE, X_Robots_Tag="noai"),
        "/noimageai": tag(b'<meta name="robots" content="noimageai">'),
        "/header": lambda h: h.answer(PAGE, **{"tdm-reservation": "1"}),
        "/meta": tag(b'<meta name="tdm-reservation" content="1">'),
        "/reserved/lifted": tag(b'<meta name="tdm-reservation" content="0">'),
        "/cc": tag(b'<link rel="license" href="https://cc.example/by/4.0/">'),
    }
    return site


# Some pages of each host, and the reason for which they are rejected.
PAGES = {
    "robots_ai_agent": "gptbot.test/closed",
    "content_signal": "cloudflare.test/page",
    "noai": "a.test/noai",
    "noimageai": "a.test/noimageai",
    "tdm_reservation": "a.test/header a.test/meta tdm.test/reserved/page",
    "": "gptbot.test/open tdm.test/reserved/lifted tdm.test/page a.test/cc rsl.test/page",
}
URLS = [(f"http://{page}", reason) for reason, pages in PAGES.items() for page in pages.split()]


def test_every_signal_drops_its_page_with_its_reason(signalling: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    manifest = run(root, signalling, [[url for url, _ in URLS[:6]], [url for url, _ in URLS[6:]]], **ON)
    rows = ledger_of(root, manifest)
    assert [(row["url"], row["reason"]) for row in rows] == URLS
    assert [row["signals"] for row in rows] == [[reason] if reason else [] for _, reason in URLS]
    assert [row["licenses"] for row in rows[-2:]] == [["https://cc.example/by/4.0/"], ["https://rsl.test/rsl.xml"]]
    rejected = rejected_of(root, manifest)
    assert [row["reason"] for row in rejected] == [reason for _, reason in URLS if reason]
    assert "GPTBot" in rejected[0]["detail"].replace("gptbot", "GPTBot") and rejected[-1]["detail"] == "tdmrep.json"
    assert not any(row["retryable"] for row in rows)
    facts = {name: count for name, count in manifest.outcome.facts.items() if name.endswith("_signals")}
    assert facts == {f"{name}_signals": count for name, count in Counter(r for _, r in URLS if r).items()}
    # Pages of which robots.txt already says so are not requested, and each file is read once per origin.
    assert signalling.hits["gptbot.test", "/closed"] == signalling.hits["cloudflare.test", "/page"] == 0
    assert {signalling.hits[host, TDM] for host in ("gptbot.test", "a.test", "tdm.test")} == {1}
    shown = consent_signals(root, manifest)
    assert shown["signals"][-1] == {"name": "tdm_reservation", "urls": 3, "dropped": 3, "hosts": 2}
    assert {**shown["hosts"][0], **{"host": "a.test", "value": "tdm_reservation", "pages": 2}} == shown["hosts"][0]
    licenses = {row["name"]: row["urls"] for row in shown["licenses"]}
    assert licenses == {"https://cc.example/by/4.0/": 1, "https://rsl.test/rsl.xml": 1}
    with Runner(1) as runner:
        page = report(root, [manifest], ReportSettings(), runner=runner)
    html = (root / page.folder).read_bytes(REPORT).decode()
    assert "<td>tdm reservation</td>" in html and "<code>https://rsl.test/rsl.xml</code>" in html


def test_signals_that_are_not_honoured_are_recorded(signalling: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    manifest = run(root, signalling, [[url for url, _ in URLS]], consent={"honour": ["noai"]})
    rows = ledger_of(root, manifest)
    assert manifest.outcome.reasons == {"noai": 1}
    signals = {row["url"]: row["signals"] for row in rows}
    assert signals["http://gptbot.test/closed"] == ["robots_ai_agent"] and signals["http://gptbot.test/open"] == []
    assert signals["http://cloudflare.test/page"] == ["content_signal"]
    assert signalling.hits["tdm.test", TDM] == 0  # a request alone for a record is not worth it


def test_signals_are_those_of_the_page_that_is_fetched(signalling: Site) -> None:
    """A redirect leads to the signals of its target; robots.txt is read for signals even where it is not obeyed."""
    signalling.handlers["/move"] = lambda h: h.redirect("http://gptbot.test/closed")
    (page,) = fetch(signalling, ["http://a.test/move"], **ON)
    assert (page.reason, page.final_url) == ("robots_ai_agent", "http://gptbot.test/closed")
    signalling.robots["a.test"] = (200, "User-agent: *\nDisallow: /\nContent-Signal: ai-train=no\n")
    (page,) = fetch(signalling, ["http://a.test/page"], obey_robots=False, **ON)
    assert page.reason == "content_signal"


def test_a_reservation_file_that_cannot_be_fetched(signalling: Site) -> None:
    urls = ["http://x.test/1", "http://x.test/2"]
    for path in ("/broken", "/bomb", "/inside"):  # the guard refuses the redirect, as for robots.txt
        signalling.handlers[TDM] = signalling.handlers[path]
        assert [page.reason for page in fetch(signalling, urls, attempts=1, **ON)] == ["", ""], path
    signalling.handlers[TDM] = signalling.handlers["/cut"]
    cut = fetch(signalling, ["http://x.test/1"], attempts=1, **ON)
    assert [(page.reason, page.retryable) for page in cut] == [("connection_failed", True)]


def test_a_corpus_without_signals_keeps_its_fingerprint_and_bytes(signalling: Site, tmp_path: Path) -> None:
    off = run(Folder(tmp_path / "off"), signalling, [["http://a.test/noai"]], consent={"enabled": False})
    assert off.version == 6 and "consent" not in off.parameters and off.outcome.reasons == {}
    assert [record.name for record in off.outcome.audit] == ["ledger/part-00000.parquet", "hosts.parquet"]
    (row,) = ledger_of(Folder(tmp_path / "off"), off)
    assert [*row] == LEDGER.names
    with pytest.raises(RunError, match=r"none of the 1 pages could be fetched \(noai 1\)"):
        run(Folder(tmp_path / "on"), signalling, [["http://a.test/noai"]], **ON)


def test_a_retry_keeps_the_signals_of_the_other_pages(signalling: Site, tmp_path: Path) -> None:
    signalling.handlers["/later"] = signalling.handlers["/broken"]
    urls = ["http://a.test/noai", "http://a.test/later", "http://a.test/cc"]
    root = Folder(tmp_path)
    run(root, signalling, [urls], attempts=1, **ON)
    signalling.handlers["/later"] = signalling.handlers["/header"]
    manifest = run_again(root, signalling.address, retry_failed=True, attempts=1, **ON)
    assert [row["signals"] for row in ledger_of(root, manifest)] == [["noai"], ["tdm_reservation"], []]
    assert manifest.outcome.reasons == {"noai": 1, "tdm_reservation": 1}
    assert {"consent.retry-1.parquet", "hosts.retry-1.parquet"} <= {record.name for record in manifest.outcome.audit}
    shown = consent_signals(root, manifest)
    assert shown is not None and [row["name"] for row in shown["signals"]] == ["noai", "tdm_reservation"]


def test_the_table_is_bounded(signalling: Site, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    urls = [f"http://h{n}.test/noai" for n in range(5)] + ["http://h0.test/header", "http://h1.test/cc"]
    manifest = run(root, signalling, [urls], **ON)
    table = tally_signals(root / "pages", ledgers_of(manifest.outcome.audit), max_rows=2).to_pylist()
    assert [(row["value"], row["host"], row["pages"], row["dropped"]) for row in table] == [
        ("noai", OTHERS, 5, 5),
        ("tdm_reservation", OTHERS, 1, 1),
        ("https://cc.example/by/4.0/", "h1.test", 1, 0),
    ]
