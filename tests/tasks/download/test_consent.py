"""Consent signals: one by one, and in whole downloads from a server on loopback."""

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder
from tasks.core.runner import Runner
from tasks.download.consent.headers import link_licenses, robots_directives
from tasks.download.consent.page_tags import page_tags
from tasks.download.consent.path_pattern import matches
from tasks.download.consent.settings import AI_AGENTS, ConsentSettings
from tasks.download.consent.signals import Consent, SiteSignals, consent, robots_signals
from tasks.download.consent.tdm_file import TdmRules
from tasks.download.host_stats import OTHERS, tally_signals
from tasks.download.ledger import LEDGER, ledgers_of
from tasks.download.robots import RobotsRules
from tasks.report.findings import consent_signals
from tasks.report.step import REPORT, ReportSettings, report
from tests.tasks.corpus import rejected_of
from tests.tasks.download.fetch_helpers import fetch, ledger_of, run, run_again
from tests.tasks.web_server import PAGE, Handler, Site

NOTHING = SiteSignals()
AGENT, NEWS = "gpt2train", "http://a.example/news/1?x=2"


def decide(*headers: tuple[str, str], body: bytes = b"", site: SiteSignals = NOTHING, **settings: object) -> Consent:
    fields = CIMultiDict(headers)
    return consent(ConsentSettings.model_validate(settings), AGENT, NEWS, site, fields, page_tags(body))


def reason(*headers: tuple[str, str], body: bytes = b"", **settings: object) -> str:
    refusal = decide(*headers, body=body, **settings).refusal
    return refusal.name if refusal else ""


def by_robots(text: str, url: str = NEWS, **settings: object) -> SiteSignals:
    chosen = ConsentSettings.model_validate(settings)
    return asyncio.run(robots_signals(RobotsRules(text), URL(url), AGENT, chosen))


def names_by_robots(text: str, url: str = NEWS) -> list[str]:
    return [signal.name for signal in by_robots(text, url).signals]


FRIDAY = "unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT"
DATED = [FRIDAY, FRIDAY.replace("Fri,", "Friday,"), "unavailable_after: 25 Jun 2010 15:00:00 PST"]


@pytest.mark.parametrize(
    ("expected", "values"),
    [
        ("noai", ["noai", "NoAI, NoImageAI", "gptbot: noindex, noai", "GPT2train: noai", "*: noai", "noindex; noai"]),
        ("noai", ["max-snippet: 50, noai", "max-snippet: 50 noai", "gptbot/1.2: noai"]),
        ("noai", ["otherbot: noai, claudebot: noai", *(f"{date}, noai" for date in DATED)]),
        ("noimageai", ["noindex, noimageai"]),
        ("", ["otherbot: noai", "10 20: noai", "noairplanes, all", ""]),
        ("", ["unavailable_after: Wednesday, 25-Jun-10 15:00:00 GMT", *(f"otherbot: {date}, noai" for date in DATED)]),
    ],
)
def test_x_robots_tag(expected: str, values: list[str]) -> None:
    for value in values:
        assert reason(("X-Robots-Tag", value)) == expected, value
        assert reason(("x-robots-tag", "all"), ("X-ROBOTS-TAG", value)) == expected, value


@pytest.mark.parametrize(
    ("expected", "tags"),
    [
        ("noai", [f'<meta name="{name}" content="noai">' for name in ("GPTBot", "gpt2train", "robots")]),
        ("noai", ['<meta name="robots" content="noai, noimageai">']),
        ("noimageai", ["<META CONTENT=NOIMAGEAI NAME=Robots>"]),
        ("", [f'<meta name="{name}" content="noai">' for name in ("otherbot", "description")]),
        ("", ['<!-- <meta name="robots" content="noai"> -->', "<script>'<meta name=robots content=noai>'</script>"]),
        ("tdm_reservation", ['<meta name="tdm-reservation" content="1">']),
        ("", [f'<meta name="tdm-reservation" content="{value}">' for value in ("0", "yes")]),
    ],
)
def test_meta_tags(expected: str, tags: list[str]) -> None:
    for tag in tags:
        page = f"<html><head><title>t</title>{tag}</head><body><p>text"
        for encoding in ("utf-8", "utf-16"):
            assert reason(body=page.encode(encoding)) == expected, (tag, encoding)


def test_the_tag_overrides_the_header_and_the_header_the_file_and_a_setting_says_what_drops() -> None:
    headers = [("X-Robots-Tag", "noai"), ("tdm-reservation", "1")]
    both = decide(*headers, honour=["tdm_reservation"])
    assert [signal.name for signal in both.signals] == ["noai", "tdm_reservation"]
    assert both.refusal is not None and both.refusal.name == "tdm_reservation"
    assert reason(*headers, honour=[]) == ""

    def found(file: bool | None, header: str | None, tag: str | None) -> bool:
        headers = [("TDM-Reservation", header)] if header else []
        body = f'<meta name="tdm-reservation" content="{tag}">'.encode() if tag else b""
        return decide(*headers, body=body, site=SiteSignals(reserved=file)).refusal is not None

    assert [found(True, None, None), found(False, None, None), found(None, None, None)] == [True, False, False]
    assert [found(True, "0", None), found(False, "1", None), found(True, "2", None)] == [False, True, True]
    assert [found(True, "1", "0"), found(False, "0", "1"), found(None, "1", "x")] == [False, True, True]


VERSIONED = ("GPTBot, CCBot", "CCBot/2.0 (https://commoncrawl.org)", "GPTBot crawler", "other,GPTBot/1.0")
SHARED = "User-agent: a\nUser-Agent: ccbot/2.0\nUSER-AGENT: Google-Extended*\nDisallow: /news/\nAllow: /news/free\n"
PATHS = "User-agent: *\nContent-Signal: /news/*?x=$ ai-train=no\nContent-Signal: /blog ai-train=no\nDisallow: /x\n"
OWN = "User-agent: GPTBot\nDisallow: /\n\nUser-agent: gpt2train/2.0, x\nDisallow: /news\nCrawl-delay: 3\n"
ROBOTS = {
    "robots_ai_agent": [SHARED, *(f"User-agent: {name}\nDisallow: /\n" for name in (*AI_AGENTS, *VERSIONED))],
    "content_signal": [
        "# text\nUser-Agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n",
        "User-agent: *\ncontent-signal: ai-train = NO , search=yes\n",
        "Content-Signal: ai-train=no\nUser-agent: *\nAllow: /\n",
        "User-agent: *\nContent-Signal: /news\tai-train=no\n",
        *(f"User-agent: {names}\nContent-Signal: ai-train=no\n" for names in ("GPTBot", *VERSIONED)),
    ],
    "": [
        *("User-agent: GPTBot\nDisallow:\n", "User-agent: Another GPTBot\nDisallow: /\n"),
        "User-agent: *\nDisallow: /\n",  # decided by robots.txt itself, not here
        "User-agent: Google\nUser-agent: Applebot\nDisallow: /\n",  # other crawlers
        "User-agent: GPTBot\nDisallow: /\n\nUser-agent: gpt2train\nAllow: /\n",
        OWN,  # decided by the rules for this crawler, which must count
        *(f"User-agent: *\nContent-Signal: {signal}\n" for signal in ("search=no, ai-train=yes", "ai-input=no")),
        "User-agent: other\nContent-Signal: ai-train=no\n",
        "User-agent: gpt2train\nContent-Signal: ai-train=yes\n\nUser-agent: *\nContent-Signal: ai-train=no\n",
        PATHS,
    ],
}


@pytest.mark.parametrize("expected", ROBOTS)
def test_signals_of_robots_txt(expected: str) -> None:
    for text in ROBOTS[expected]:
        assert names_by_robots(text) == ([expected] if expected else []), text


def test_signals_of_robots_txt_by_path_agent_and_header() -> None:
    assert names_by_robots(SHARED, "http://a.example/news/free") == names_by_robots(SHARED, "http://a.example/x") == []
    assert names_by_robots(PATHS, "http://a.example/blog/2") == ["content_signal"]
    for agent in ("NewBot", "Kangaroo Bot"):
        assert by_robots(f"User-agent: {agent}\nDisallow: /", agents=[agent]).signals[0].name == "robots_ai_agent"
    for text in (OWN, OWN.replace(", x", "")):
        rules = RobotsRules(text)
        assert not asyncio.run(rules.allows_crawler(NEWS, AGENT)) and rules.delay(AGENT) == 3
        assert asyncio.run(rules.allows_crawler("http://a.example/", AGENT))
    assert reason(("Content-Signal", "ai-train=no, search=yes")) == "content_signal"
    assert reason(("Content-Signal", "ai-train=yes")) == ""


def test_tdm_files() -> None:
    policy = {"location": "/news/*.html$", "tdm-reservation": 1, "tdm-policy": "https://a.example/p.json"}
    values = {"/": 0, "/é": "1", "/bad": True, 3: 1}
    rows = [{"location": location, "tdm-reservation": value} for location, value in values.items()]
    rules = TdmRules(json.dumps([*rows, policy, "text"]))
    assert rules.reserves("/news/a.html") and rules.reserves("/%C3%A9/x")
    assert rules.reserves("/news/a.html?q") is False and rules.reserves("/bad") is False
    assert TdmRules('[{"location": "/a", "tdm-reservation": 1}]').reserves("/b") is None
    rule = '[{"location": "/", "tdm-reservation": 1}'  # what breaks the protocol reserves nothing
    for text in ("", "<html>", "{}", "[", rule, "[" * 200_000, "[" + "9" * 400_000 + "]"):
        assert not TdmRules(text), text[:50]


def test_patterns_are_compared_in_one_encoding() -> None:
    for location, url in {
        **{"/%c3%a4": "/ä", "/%7Ejoe": "/~joe", "/%66oo?%62=%2f": "/foo?b=/", "/a%3Db": "/a=b", "/?a%3Db": "/?a%3db"},
        **{"/a%2Ab$": "/a*b", "/a%24": "/a$b", "/a$b": "/a$b"},
    }.items():
        rules = TdmRules(json.dumps([{"location": location, "tdm-reservation": 1}]))
        assert rules.reserves(URL(f"http://a.example{url}").raw_path_qs) is True, location
        assert rules.reserves("/axb") is None and rules.reserves("/?a=b") is None, location


def test_licenses_are_recorded_and_drop_nothing() -> None:
    body = b"""<link href="/license" rel="License canonical">
      <a rel='nofollow license' href="//cc.example/by/4.0/">CC</a>
      <link rel=stylesheet href=license.css><a rel=license href="http://[">"""
    found = decide(("Link", '<https://l.example/1>; rel="license", </x>; rel=next, </y>; rel=license'), body=body)
    expected = ["http://a.example/license", "http://cc.example/by/4.0/", "https://l.example/1", "http://a.example/y"]
    assert found.licenses == (*expected,) and found.refusal is None
    files = ("https://a.example/rsl.xml", "https://a.example/2.xml")
    rsl = by_robots("License: {}\nUser-agent: *\nAllow: /\nLicense: {} # x\n".format(*files))
    assert (rsl.licenses, rsl.signals) == (files, ())
    assert decide(site=rsl).licenses == rsl.licenses


def test_hostile_values_take_bounded_time() -> None:
    began = time.process_time()
    megabyte = "noindex, a: " * 100_000
    assert reason(("X-Robots-Tag", megabyte), ("Link", "<" * 10**6), ("Link", '<a>; rel="' * 10**5)) == ""
    tags = b"<meta name=robots content=noindex>" * 30_000 + b"noai"
    assert reason(body=tags) == "" and reason(body=b"<div>" * 200_000 + b"noai") == ""
    assert reason(body=b'<meta name="tdm-reservation" content="' + b"1" * 2**20) == ""
    assert not page_tags(b"rel=" * 250_000 + b"license").licenses
    text = "User-agent: *\n" + "Content-Signal: /*a*a*a*b ai-train=no\n" * 10_000
    assert names_by_robots(text, "http://a.example/" + "a" * 8000) == []
    rules = TdmRules(json.dumps([{"location": "/*a*a*a*a*b", "tdm-reservation": 1}] * 5000))
    assert rules.reserves("/" + "a" * 8000) is None
    assert time.process_time() - began < 10
    links = [("Link", f"<https://l.example/{n}>; rel=license") for n in range(1000)]
    assert len(decide(*links).licenses) == 8 and link_licenses(["<" + "x" * 5000 + ">; rel=license"]) == []


@given(st.text("ab*$", max_size=8), st.text("ab", max_size=12))
def test_path_patterns_equal_regular_expressions(pattern: str, path: str) -> None:
    plain = ".*".join(map(re.escape, pattern.removesuffix("$").split("*")))
    assert matches(pattern, path) == bool(re.match(plain + (r"\Z" if pattern.endswith("$") else ""), path))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab: ,;*-_\t\x00é" + "noaimgeunvlbft", max_size=40)), st.binary(max_size=200))
def test_any_header_and_any_page_give_a_decision(values: list[str], body: bytes) -> None:
    directives = robots_directives(values, {"a"})
    assert all(one == one.lower() and "," not in one for one in directives)
    fields = [(name, value) for name in ("X-Robots-Tag", "Link") for value in values]
    found = decide(*fields, body=body + b"noai")
    assert found.refusal is None or found.refusal in found.signals


TDM = "/.well-known/tdmrep.json"
ON = {"consent": {}}


def tag(text: bytes) -> Any:
    return lambda h: h.answer(b"<html><head>" + text + b"</head><body><p>text", "text/html")


@pytest.fixture
def signalling(site: Site) -> Site:
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
    assert off.version == 8 and "consent" not in off.parameters and off.outcome.reasons == {}
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
    others = [("noai", OTHERS, 5, 5), ("tdm_reservation", OTHERS, 1, 1)]
    found = [(row["value"], row["host"], row["pages"], row["dropped"]) for row in table]
    assert found == [*others, ("https://cc.example/by/4.0/", "h1.test", 1, 0)]
