"""Adversarial robots.txt: bounded parsing time, outside the event loop."""

import asyncio
import time

import pytest

from tasks.download.response_body import FetchRejectedError
from tasks.download.robots import MAX_AGENTS, RobotsRules
from tests.tasks.download.fetch_helpers import fetch
from tests.tasks.web_server import Site

AGENT = "gpt2train"
WILD = "User-agent: *\n" + "".join(f"Disallow: /*a*b{number}\n" for number in range(23_000))


def allows(rules: RobotsRules, path: str) -> bool:
    return asyncio.run(rules.allows(f"http://a.example/{path}", AGENT))


def test_rules_are_obeyed() -> None:
    rules = RobotsRules("User-agent: *\nDisallow: /private\nAllow: /private/open\nCrawl-delay: 2.5\n")
    assert [allows(rules, path) for path in ("x", "private", "private/open/x")] == [True, False, True]
    assert rules.delay(AGENT) == 2.5 and RobotsRules("").delay(AGENT) == 0.0


def test_many_rules_take_bounded_time_for_any_url() -> None:
    rules = RobotsRules(WILD)
    assert allows(rules, "a" * 100) and not allows(rules, "a/b77")
    began = time.process_time()
    assert not allows(rules, "a" * 8000)  # 0.4 s of CPU time to compare; what cannot be compared is forbidden
    assert time.process_time() - began < 0.1


def test_the_product_of_agents_and_rules_is_bounded() -> None:
    """The first of these asked for 2 x 10^8 rules from 360 kB."""
    for text in (
        "".join(f"User-agent: a{n}\n" for n in range(10_000)) + "Disallow: /x\n" * 20_000,
        "".join(f"user agent a{n}\n" for n in range(4_000)) + "".join(f"Allow: /{n}\n" for n in range(4_000)),
        "".join(f"User-agent: a{n}\n" for n in range(MAX_AGENTS + 1)) * 2,
    ):
        began = time.process_time()
        with pytest.raises(FetchRejectedError, match="too many rules"):
            RobotsRules(text)
        assert time.process_time() - began < 2, text[:50]


def test_long_lists_of_bots_are_read() -> None:
    """As sites have them: thousands of agents that are all shut out, in one group or in one each."""
    names = [f"bot-{number}" for number in range(3_000)]
    one = "".join(f"User-agent: {name}\n" for name in names) + "Disallow: /\n\nUser-agent: *\nDisallow: /x\n"
    each = "".join(f"User-agent: {name}\nDisallow: /\n\n" for name in names) + "User-agent: *\nDisallow: /x\n"
    for text in (one, each):
        assert [allows(RobotsRules(text), path) for path in ("page", "x")] == [True, False]


def test_an_adversarial_file_delays_only_its_own_host(site: Site) -> None:
    site.robots["evil.test"] = (200, "".join(f"User-agent: a{n}\n" for n in range(9000)) + "Disallow: /x\n" * 20_000)
    site.robots["slow.test"] = (200, WILD)
    urls = ["http://evil.test/page", "http://slow.test/page", "http://slow.test/" + "a" * 8000, "http://a.test/page"]
    pages = fetch(site, urls, max_wire_bytes=2**20)
    assert [page.reason for page in pages] == ["robots_unavailable", "", "robots_forbidden", ""]
