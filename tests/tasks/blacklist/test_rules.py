"""Rules of the blacklist: each rule, their order, blocklists, and reference decisions for a real list."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import UserError
from tasks.blacklist.blocklists import Blocklists, check_blocklists, pack, read_blocklists
from tasks.blacklist.megatron_rules import MegatronClassifier
from tasks.blacklist.rules import EXTENSIONS, PLAIN, Rules, UrlClassifier, blocked_names, site_name

LISTED = Blocklists(
    pack([("bad.example", "test"), ("cdn.good.example", "test")]),
    {"good.example/bad": "test", "good.example/dir/": "test", "good.example/q?id=1": "test"},
    frozenset(["good.example"]),
)
RULES = Rules(blocked_names(), EXTENSIONS, LISTED, 9)


def reason(url: str) -> str | None:
    return UrlClassifier(RULES)(url)[0] or None


def key(url: str) -> bytes:
    return UrlClassifier(RULES)(url)[2]


# Places of pages by the reason for which each is rejected.
REASONS: dict[str | None, list[str]] = {
    # By name under any suffix, any sub-domain, any writing; not by a part of a name.
    "blacklisted_domain": [
        *("http://google.com/x", "HTTP://Maps.GOOGLE.co.uk./x", "http://reddit.example/"),
        "http://user:secret@youtube.com:8080/watch",
    ],
    # Blocklists of the user: a domain and its subdomains.
    "listed_domain": ["http://bad.example/x", "http://a.b.bad.example/x", "http://x.cdn.good.example/x"],
    # The user's lists of URLs: the beginning of the path, cut where a part of it ends.
    "listed_url": [
        *("http://www.good.example/BAD", "http://good.example/bad/x?y", "http://good.example/bad?x"),
        *("http://good.example/dir/x", "http://good.example/q?id=1&x=2"),
    ],
    # Of the path alone; .7z and .ai, which the reference's missing comma let through.
    "forbidden_extension": [
        f"http://good.example/a.{end}" for end in ("PDF", "pdf?page=1", "pdf#page=1", "7z", "ai", "tar.gz")
    ],
    "too_short": ["http://a", ""],
    "malformed": [
        *("ftp://good.example/x", "good.example/page", "http:/good.example", "http:///good/x", "http://[::1/x"),
        *(f"http://{host}/x" for host in ("localhost", "a b.example", "-a.example", "a..example", "1.2.3.400")),
        *(f"http://{host}/x" for host in ("0x7f.1", "a" * 64 + ".example", "xn--a\u00df.\u200d.example")),
        *(f"http://good.example:{port}/x" for port in ("99999", "0", "abc")),
        *(f"http://good.example/{sign}" for sign in "\x00\ufffd"),
    ],
    None: [
        *("http://good.example/page", "http://notgoogle.com/x", "http://google.blogspot.com/x"),
        *("http://good.example/google.com", "http://twitter.good.example/x", "http://notbad.example/x"),
        *("http://good.example/badly", "http://good.example/dir", "http://a.good.example/bad"),
        *("http://good.example/q?id=12", "http://good.example/a?file=b.pdf", "http://good.example/a#b.pdf"),
        *("http://good.example/a.pdf/text", "http://good.app", "http://good.zip"),
        # Odd, but URLs: whether an address may be asked is the download's question.
        *("http://1.2.3.4/x", "http://[2001:db8::1]:8080/x", "http://b\u00fccher.example/x"),
        *("http://good_host.example/x", "http://good.example/two words"),
    ],
}


@pytest.mark.parametrize("expected", REASONS)
def test_each_rule_gives_its_reason(expected: str | None) -> None:
    assert {url: reason(url) for url in REASONS[expected]} == dict.fromkeys(REASONS[expected], expected)


def test_the_first_rule_that_hits_is_named() -> None:
    assert reason("http://google.com/a.pdf") == "blacklisted_domain"
    assert reason("ftp://good.example/a.pdf") == "forbidden_extension"


def test_equivalent_urls_alone_have_one_key() -> None:
    first = key("http://good.example/a?b")
    assert len(first) == 16
    for same in ("HTTP://Good.Example/a?b", "http://good.example:80/a?b", "http://me@good.example./a?b#c"):
        assert key(same) == first, same
    for other in ("https://good.example/a?b", *(f"http://good.example{end}" for end in (":81/a?b", "/A?b", "/a?c"))):
        assert b"" != key(other) != first, other


@given(st.text() | st.text().map("http://{}".format) | st.text(st.sampled_from("htp:/.[]@?#%a1é\u202e")))
def test_any_text_gets_a_verdict(url: str) -> None:
    classify = UrlClassifier(RULES)
    found, _, digest = verdict = classify(url)
    assert len(digest) == (0 if found else 16)
    assert classify(url) == verdict  # what it remembers of the host changes nothing


@pytest.mark.parametrize(
    ("expected", "urls"),
    [
        ("", ["http://good.example/page", "http://1.2.3.400/x"]),
        ("", ["http://good.example/a.7z", "http://good.example/a.ai", "http://good.example/a.pdf#page=1"]),
        ("blacklisted_domain", ["http://maps.google.co.uk/x", "google.com/x"]),
        ("forbidden_extension", ["http://good.example/a.7z.ai", "http://good.app", "http://good.example/a#b.pdf"]),
        ("forbidden_extension", ["http://good.example/a.pdf?x"]),
        ("too_short", ["http://a"]),
        ("malformed", ["http://b\u00fccher.example/x", "http://good_host.example/x", "http://me@good.example/x"]),
        ("malformed", ["http://localhost/x", "http://good.example/two words"]),
    ],
)
def test_parity_reproduces_megatrons_faults(expected: str, urls: list[str]) -> None:
    classify = MegatronClassifier(Rules(blocked_names(), EXTENSIONS))
    for url in urls:
        assert classify(url)[0] == expected, url
        assert classify(url)[2] != classify(url + "#x")[2] or expected, url


WORDS = """http https ftp :// : / // ? # @ . .. - _ [ ] ! ~ % %41 \\ ; & = google good.example bad.example www. a.b
reddit.com .co.uk com example 1.2.3.4 0x7f A é .pdf .PDF .7z .tar.gz pdf /bad /dir/ q?id=1 :80 :0 x.y http:// https://a."""
PARTS = st.sampled_from([*WORDS.split(), " ", "\t", "\x00", "a" * 64, "abcd." * 50])


@settings(max_examples=400)
@given(st.lists(PARTS, max_size=8).map("".join), st.sampled_from(["", "http://good.example"]))
def test_the_fast_path_equals_the_general_one(rest: str, begin: str) -> None:
    assert UrlClassifier(RULES)(begin + rest) == UrlClassifier(RULES).classify_any(begin + rest)


def test_the_fast_path_is_taken_for_plain_urls() -> None:
    assert PLAIN.fullmatch("http://a-b.good.example/x.html?y=1&z#top")
    assert not PLAIN.fullmatch("http://good.example:80/") and not PLAIN.fullmatch("http://me@good.example/")


def test_site_names_are_extracted() -> None:
    hosts = ["maps.google.co.uk", "me.blogspot.com", "reddit.example", "example", "1.2.3.4"]
    assert [site_name(host) for host in hosts] == ["google", "blogspot", "reddit", "", ""]


def test_both_layouts_of_ut1_are_read(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "domains").write_text("One.example\n# no\none.example\n")
    (tmp_path / "adult" / "urls").write_text("www.three.example/~x\n")
    (tmp_path / "adult" / "usage").write_text("black\n")
    (tmp_path / "ads.txt.gz").write_bytes(gzip.compress(b".two.example\none.example\n"))
    listed = read_blocklists([str(tmp_path)])
    assert [listed.domains[n] for n in range(len(listed.domains))] == [b"one.example", b"two.example"]
    assert listed.domains.find("a.one.example") == ("one.example", "ads")  # the first list that names it
    assert listed.urls == {"three.example/~x": "adult"}
    assert read_blocklists([str(tmp_path / "ads.txt.gz")]).domains.find("two.example") == ("two.example", "ads")
    assert read_blocklists([str(tmp_path / "adult")]).domains.find("one.example") == ("one.example", "adult")
    assert listed.digest != read_blocklists([str(tmp_path / "adult")]).digest
    check_blocklists([str(tmp_path)])
    for look in (read_blocklists, check_blocklists):
        with pytest.raises(UserError, match=r"cannot read .*none.txt"):
            look([str(tmp_path / "none.txt")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no list in .*domain-lists"):
        read_blocklists([str(tmp_path / "empty")])


@given(st.dictionaries(st.text(st.sampled_from("ab."), min_size=1, max_size=6), st.sampled_from("xyz")), st.text("ab."))
def test_packed_domains_give_the_results_of_a_dict(entries: dict[str, str], host: str) -> None:
    below = [".".join(host.split(".")[n:]) for n in range(host.count(".") + 1)]
    expected = next(((name, entries[name]) for name in below if name and name in entries), None)
    if "" not in below[:-1]:  # an empty label ends the search; no host name has one
        assert pack(entries.items()).find(host) == expected


@pytest.mark.slow
def test_the_real_list_gets_its_reference_decisions(real_data: Path) -> None:
    """130,791 URLs and UT1 categories. The reference knows exact repetition and `has an http host`, nothing else."""
    with gzip.open(real_data / "urls" / "urls_expected.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [row.split("\t", 2) for row in file.read().split("\n")[1:] if row.count("\t") >= 2]
    counts = json.loads((real_data / "urls" / "expected_counts.json").read_text())["counts"]
    assert len(rows) == counts["total"]
    classify = UrlClassifier(Rules(listed=read_blocklists([str(real_data / "urls" / "blacklists")])))
    seen: set[bytes] = set()
    pairs: Counter[tuple[str, str]] = Counter()
    for decision, category, url in rows:
        found, detail, digest = classify(url)
        if not found and digest in seen:
            found = "duplicate"
        seen.add(digest)
        pairs[decision, found] += 1
        if found == "listed_domain" and decision == "blacklisted":
            assert detail.partition(" ")[0] == category.partition(":")[2]  # the domain; two categories may name it
        if decision == "keep" and found:
            # Stricter than the reference: repeated but for the writing, or no public host name, or a stray return.
            assert found == "duplicate" or detail in {
                "port is no number up to 65535",
                "control or undecodable characters",
                "not a full host name",
                "a number, but no IP address, as host",
            }, (url, found, detail)
    assert pairs["blacklisted", "listed_domain"] == counts["blacklisted"]
    assert pairs["invalid", "malformed"] == counts["invalid"]
    assert pairs["dup", ""] == 0
    assert pairs["keep", ""] == counts["keep"] - 266 - 38  # the two kinds checked above
