"""The blacklist step: rules, order, shards, rejected rows, reference decisions for a real list, reproducible bytes."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.blacklist.blocklists import Blocklists, check_blocklists, domains_of, pack, read_blocklists
from tasks.blacklist.duplicate_urls import KeyWriter, cells_of, duplicate_positions
from tasks.blacklist.megatron_rules import MegatronClassifier
from tasks.blacklist.rules import EXTENSIONS, PLAIN, Rules, UrlClassifier, blocked_names, site_name
from tasks.blacklist.step import BlacklistSettings, blacklist
from tasks.core.url_lists import find_url_lists, without_credentials
from tests.tasks.corpus import Inline, rejected_of, rows_of


@given(st.lists(st.integers(0, 9), max_size=60), st.sampled_from([1, 4]))
def test_duplicates_equal_those_of_a_set(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], cells: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "keys"
    seen: set[int] = set()
    expected = [row for row, number in enumerate(numbers) if number in seen or seen.add(number)]  # type: ignore[func-returns-value]
    with KeyWriter(path, cells) as writer:
        for row, number in enumerate(numbers):
            writer.add([bytes([number // 2 * 50]) * 8 + bytes([number % 2]) * 8], [row])
    entries = np.fromfile(path, dtype="<u8").reshape(-1, 3)
    assert duplicate_positions(entries).tolist() == expected
    found = []
    for cell in range(cells):  # each cell by itself finds its part
        parts = [entries[starts[cell] : starts[cell + 1]] for starts in writer.index] or [entries[:0]]
        found += duplicate_positions(np.concatenate(parts)).tolist()
    assert sorted(found) == expected
    assert [cells_of(size) for size in (0, 2**26 - 1, 2**26, 10 * 2**26, 2**50)] == [1, 1, 2, 16, 256]


def write(path: Path, urls: list[str]) -> str:
    path.write_text("\n".join(urls) + "\n")
    return str(path)


def run(root: Folder, places: list[str], **settings: object) -> Manifest:
    return blacklist(root, find_url_lists(places), BlacklistSettings.model_validate(settings), Inline(1))


def urls_of(root: Folder, manifest: Manifest) -> list[str]:
    return [row["url"] for row in rows_of(root, manifest)]


SECRETS = ("hunter2", "s3cret", "tok3n")


@pytest.mark.parametrize("credentials", ["strip", "reject"])
def test_no_password_of_a_listed_url_is_written(tmp_path: Path, credentials: str) -> None:
    urls = [
        "http://me:hunter2@a.example/page?x=1#part",
        "https://s3cret@b.example:8443/",
        "http://me:hunter2@me:hunter2@c.example/",  # two of them
        "http://me:hunter2@d.example/file.pdf",  # dropped for another reason
        "http://me:hunter2@[broken/",  # no URL at all
        "me:hunter2@e.example/page",
        "ftp://me:hunter2@f.example/",
        "http:\\\\me:hunter2@g.example\\",
        "http://h.example/@me/post?mail=me@h.example",
    ]
    root = Folder(tmp_path / "out")
    manifest = run(root, [write(tmp_path / "list.txt", urls)], credentials=credentials)
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    rows = [*urls_of(root, manifest), *(f"{row}" for row in rejected_of(root, manifest))]
    assert not [secret for secret in SECRETS if secret.encode() in written or secret in f"{rows}"]
    plain = urls[-1]
    if credentials == "reject":
        assert urls_of(root, manifest) == [plain] and manifest.outcome.reasons["credentials"] == len(urls) - 1
    else:
        kept = ["http://a.example/page?x=1#part", "https://b.example:8443/", "http://c.example/", plain]
        assert urls_of(root, manifest) == kept


@given(st.text(max_size=40), st.text("abc:%~!$", max_size=20))
def test_a_url_loses_its_credentials_and_nothing_else(rest: str, secret: str) -> None:
    assert without_credentials(f"http://{secret}@host.example/{rest}") == f"http://host.example/{rest}"
    assert without_credentials(f"http://host.example/{rest}") == f"http://host.example/{rest}"


def test_the_parity_setting_follows_megatron(tmp_path: Path) -> None:
    urls = write(tmp_path / "l.txt", ["http://a.example/1", "http://a.example/1#x", "http://a.example/a.7z"])
    root = Folder(tmp_path / "out")
    assert run(root, [urls]).outcome.reasons == {"duplicate": 1, "forbidden_extension": 1}
    assert run(root, [urls], parity="megatron").outcome.kept == 3
    with pytest.raises(ValueError, match="one of the two"):
        BlacklistSettings(parity="megatron", domain_lists=("ut1",))


POOL = [f"http://good.example/{n}" for n in range(9)] + ["http://x.com/a.pdf", "x"]


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(POOL), min_size=1, max_size=20), min_size=1, max_size=3), st.booleans())
def test_order_is_kept_and_shards_are_full(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[str]], many: bool
) -> None:
    """The first of equals wins over all lists, for one cell and for several."""
    base = tmp_path_factory.mktemp("out")
    root, places = Folder(base / "o"), [write(base / f"{n}.txt", urls) for n, urls in enumerate(lists)]
    everything = [url for urls in lists for url in urls]
    expected = [url for url in dict.fromkeys(everything) if url.startswith("http://good")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.blacklist.step.cells_of", lambda _: 4 if many else 1)
        patch.setattr("tasks.blacklist.step.BLOCK_ROWS", 5)
        patch.setattr("tasks.blacklist.duplicate_urls.SEGMENT", 3)
        if not expected:
            with pytest.raises(UserError, match=r"every one of the \d+ URLs was rejected"):
                run(root, places, shard_rows=2)
            return
        manifest = run(root, places, shard_rows=2)
    assert urls_of(root, manifest) == expected
    assert [record.rows for record in manifest.outputs] == [2] * (len(expected) // 2) + [1] * (len(expected) % 2)
    outcome = manifest.outcome
    assert (outcome.seen, outcome.kept) == (len(everything), len(expected))
    assert Counter(row["reason"] for row in rejected_of(root, manifest)) == outcome.reasons
    assert sum(outcome.reasons.values()) + outcome.kept == outcome.seen
    assert not [name for name in (root / "urls").files() if name.startswith("work")]


def test_a_trial_reads_the_first_rows_of_each_list(tmp_path: Path) -> None:
    names = [write(tmp_path / f"{n}.txt", [f"http://a{n}.example/{i}" for i in range(5)]) for n in range(2)]
    trial = run(Folder(tmp_path / "trial"), names, head=2)
    begins = [f"http://a{n}.example/{i}" for n in range(2) for i in range(2)]
    assert urls_of(Folder(tmp_path / "trial"), trial) == begins
    whole = run(Folder(tmp_path / "whole"), names)
    assert whole.outcome.kept == 10 and "head" not in whole.parameters  # the fingerprint is that of earlier releases


def test_a_list_that_changes_during_a_run_ends_it(tmp_path: Path) -> None:
    """Else its new rows would stand under the hash of the old ones."""
    root, place = Folder(tmp_path / "out"), write(tmp_path / "a.txt", ["http://a.example/1"])
    lists = find_url_lists([place])
    write(tmp_path / "a.txt", ["http://a.example/2", "http://a.example/3"])
    with pytest.raises(RunError, match=r"a\.txt has changed since the run began; run the command again"):
        blacklist(root, lists, BlacklistSettings(), Inline(1))
    assert len(urls_of(root, run(root, [place]))) == 2


def test_rejected_rows_have_reason_and_source_line(tmp_path: Path) -> None:
    lines = ["http://a.example/1", "# comment", "http://a.example/1#x", "http://a.example:x/"]
    lines += ["http://a.example/" + "x" * 9000]
    pq.write_table(pa.table({"n": [1, 2], "url": ["http://b.example/", None]}), tmp_path / "b.parquet")
    root = Folder(tmp_path / "out")
    manifest = run(root, [write(tmp_path / "a.txt", lines), str(tmp_path / "b.parquet")])
    assert urls_of(root, manifest) == ["http://a.example/1", "http://b.example/"]
    found = [(row["url"], row["source"], row["reason"], row["detail"]) for row in rejected_of(root, manifest)]
    assert found == [
        ("http://a.example/1#x", "a.txt", "duplicate", ""),
        ("http://a.example:x/", "a.txt", "malformed", "row 4: port is no number up to 65535"),
        (None, "a.txt", "too_long", "row 5: more than 8192 bytes"),
        ("", "b.parquet", "too_short", "0 characters, at least 9 expected"),
    ]
    with pytest.raises(UserError, match=r"every one of the 2 URLs .*forbidden_extension 1, too_short 1; \S"):
        run(root, [write(tmp_path / "l.txt", ["http://a.example/x.pdf", "x"])])


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
def test_each_rule_gives_its_reason_and_the_first_that_hits_is_named(expected: str | None) -> None:
    assert {url: reason(url) for url in REASONS[expected]} == dict.fromkeys(REASONS[expected], expected)
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


def test_the_fast_path_is_taken_for_plain_urls_and_site_names_are_extracted() -> None:
    assert PLAIN.fullmatch("http://a-b.good.example/x.html?y=1&z#top")
    assert not PLAIN.fullmatch("http://good.example:80/") and not PLAIN.fullmatch("http://me@good.example/")
    hosts = ["maps.google.co.uk", "me.blogspot.com", "reddit.example", "example", "1.2.3.4"]
    assert [site_name(host) for host in hosts] == ["google", "blogspot", "reddit", "", ""]


LINES = {
    "0.0.0.0 a.example": ["a.example"],
    "127.0.0.1\tlocalhost b.example # two": ["localhost", "b.example"],
    "::1 c.example": ["c.example"],
    "*.d.example": ["d.example"],
    "||e.example^$third-party": ["e.example"],
    "f.example # a comment": ["f.example"],
    "münchen.example": ["xn--mnchen-3ya.example"],
    ".g.example.": ["g.example"],
    "no domain": [],
    "@@||h.example^": [],
}


@pytest.mark.parametrize("line", LINES)
def test_domains_of_other_lists_are_read(line: str) -> None:
    assert domains_of(line) == LINES[line]


def test_a_list_without_domains_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# title\n/ads/banner$image\n")
    with pytest.raises(UserError, match=r"a\.txt holds no domain; expected one per line, as example\.org"):
        read_blocklists([str(tmp_path / "a.txt")])
    (tmp_path / "a.txt").write_text("# nothing yet\n")
    assert len(read_blocklists([str(tmp_path / "a.txt")]).domains) == 0


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
            stricter = ("port is no number", "control or undecodable", "not a full host name", "a number, but no IP")
            assert found == "duplicate" or detail.startswith(stricter), (url, found, detail)
    assert pairs["blacklisted", "listed_domain"] == counts["blacklisted"]
    assert pairs["invalid", "malformed"] == counts["invalid"]
    assert pairs["dup", ""] == 0
    assert pairs["keep", ""] == counts["keep"] - 266 - 38  # the two kinds checked above
