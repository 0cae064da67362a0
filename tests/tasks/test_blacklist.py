"""The blacklist: each rule, their order, the real list with its reference decisions, shards and determinism."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import UserError
from tasks.blacklist import BlacklistSettings, blacklist
from tasks.blacklist.listed import Listed, check_listed, pack, read_listed
from tasks.blacklist.parity import MegatronJudge
from tasks.blacklist.repeats import KeyWriter, cells_of, repeats
from tasks.blacklist.rules import EXTENSIONS, PLAIN, Judge, Rules, blocked_names, site_name
from tasks.shards import read_rows
from tasks.steps import Manifest
from tasks.storage import Folder
from tasks.urls import find_url_lists
from tests.tasks.corpus import Inline, rejected_of

LISTED = Listed(
    pack([("bad.example", "test"), ("cdn.good.example", "test")]),
    {"good.example/bad": "test", "good.example/dir/": "test", "good.example/q?id=1": "test"},
    frozenset(["good.example"]),
)
RULES = Rules(blocked_names(), EXTENSIONS, LISTED, 9)


def reason(url: str) -> str | None:
    return Judge(RULES)(url)[0] or None


def key(url: str) -> bytes:
    return Judge(RULES)(url)[2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://good.example/page", None),
        # Domains: by name under any suffix, any sub-domain, any writing; not by a part of a name.
        ("http://google.com/x", "blacklisted_domain"),
        ("HTTP://Maps.GOOGLE.co.uk./x", "blacklisted_domain"),
        ("http://user:secret@youtube.com:8080/watch", "blacklisted_domain"),
        ("http://reddit.example/", "blacklisted_domain"),
        ("http://notgoogle.com/x", None),
        ("http://google.blogspot.com/x", None),
        ("http://good.example/google.com", None),
        ("http://twitter.good.example/x", None),
        # The user's lists: the domain and what lies under it.
        ("http://bad.example/x", "listed_domain"),
        ("http://a.b.bad.example/x", "listed_domain"),
        ("http://notbad.example/x", None),
        ("http://x.cdn.good.example/x", "listed_domain"),
        # The user's lists of URLs: the beginning of the path, cut where a part of it ends.
        ("http://www.good.example/BAD", "listed_url"),
        ("http://good.example/bad/x?y", "listed_url"),
        ("http://good.example/bad?x", "listed_url"),
        ("http://good.example/badly", None),
        ("http://good.example/dir/x", "listed_url"),
        ("http://good.example/dir", None),
        ("http://good.example/q?id=1&x=2", "listed_url"),
        ("http://good.example/q?id=12", None),
        ("http://a.good.example/bad", None),
        # Extensions: of the path alone; .7z and .ai, which the reference's missing comma let through.
        ("http://good.example/a.PDF", "forbidden_extension"),
        ("http://good.example/a.pdf?page=1", "forbidden_extension"),
        ("http://good.example/a.pdf#page=1", "forbidden_extension"),
        ("http://good.example/a.7z", "forbidden_extension"),
        ("http://good.example/a.ai", "forbidden_extension"),
        ("http://good.example/a.tar.gz", "forbidden_extension"),
        ("http://good.example/a?file=b.pdf", None),
        ("http://good.example/a#b.pdf", None),
        ("http://good.example/a.pdf/text", None),
        ("http://good.app", None),
        ("http://good.zip", None),
        # Length and form.
        ("http://a", "too_short"),
        ("", "too_short"),
        ("ftp://good.example/x", "malformed"),
        ("good.example/page", "malformed"),
        ("http:/good.example", "malformed"),
        ("http:///good/x", "malformed"),
        ("http://localhost/x", "malformed"),
        ("http://a b.example/x", "malformed"),
        ("http://-a.example/x", "malformed"),
        ("http://a..example/x", "malformed"),
        ("http://good.example:99999/x", "malformed"),
        ("http://good.example:0/x", "malformed"),
        ("http://good.example:abc/x", "malformed"),
        ("http://[::1/x", "malformed"),
        ("http://1.2.3.400/x", "malformed"),
        ("http://0x7f.1/x", "malformed"),
        ("http://good.example/\x00", "malformed"),
        ("http://good.example/\ufffd", "malformed"),
        ("http://" + "a" * 64 + ".example/x", "malformed"),
        ("http://xn--a\u00df.\u200d.example/x", "malformed"),
        # Odd, but URLs: whether an address may be asked is the download's question.
        ("http://1.2.3.4/x", None),
        ("http://[2001:db8::1]:8080/x", None),
        ("http://b\u00fccher.example/x", None),
        ("http://good_host.example/x", None),
        ("http://good.example/two words", None),
    ],
)
def test_each_rule(url: str, expected: str | None) -> None:
    assert reason(url) == expected


def test_the_first_rule_that_hits_is_named() -> None:
    assert reason("http://google.com/a.pdf") == "blacklisted_domain"
    assert reason("ftp://good.example/a.pdf") == "forbidden_extension"


@pytest.mark.parametrize(
    "same",
    [
        "HTTP://Good.Example/a?b",
        "http://good.example:80/a?b",
        "http://good.example/a?b#c",
        "http://me@good.example./a?b",
    ],
)
def test_repetition_is_found_in_other_clothes(same: str) -> None:
    assert key("http://good.example/a?b") == key(same) != b""


@pytest.mark.parametrize(
    "other",
    ["https://good.example/a?b", "http://good.example:81/a?b", "http://good.example/A?b", "http://good.example/a?c"],
)
def test_what_differs_is_kept(other: str) -> None:
    assert key("http://good.example/a?b") != key(other) != b""


@given(st.text() | st.text().map("http://{}".format) | st.text(st.sampled_from("htp:/.[]@?#%a1é\u202e")))
def test_any_text_gets_a_verdict(url: str) -> None:
    judge = Judge(RULES)
    found, _, digest = verdict = judge(url)
    assert len(digest) == (0 if found else 16)
    assert judge(url) == verdict  # what it remembers of the host changes nothing


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://good.example/page", ""),
        ("http://maps.google.co.uk/x", "blacklisted_domain"),
        ("google.com/x", "blacklisted_domain"),
        ("http://good.example/a.7z", ""),
        ("http://good.example/a.ai", ""),
        ("http://good.example/a.7z.ai", "forbidden_extension"),
        ("http://good.app", "forbidden_extension"),
        ("http://good.example/a.pdf#page=1", ""),
        ("http://good.example/a#b.pdf", "forbidden_extension"),
        ("http://good.example/a.pdf?x", "forbidden_extension"),
        ("http://a", "too_short"),
        ("http://b\u00fccher.example/x", "malformed"),
        ("http://good_host.example/x", "malformed"),
        ("http://me@good.example/x", "malformed"),
        ("http://localhost/x", "malformed"),
        ("http://good.example/two words", "malformed"),
        ("http://1.2.3.400/x", ""),
    ],
)
def test_parity_has_the_faults_of_the_recipe(url: str, expected: str) -> None:
    judge = MegatronJudge(Rules(blocked_names(), EXTENSIONS))
    assert judge(url)[0] == expected
    assert judge(url)[2] != judge(url + "#x")[2] or expected


def test_parity_of_the_step(tmp_path: Path) -> None:
    place = write(tmp_path / "l.txt", ["http://a.example/1", "http://a.example/1#x", "http://a.example/a.7z"])
    root = Folder(tmp_path / "out")
    assert run(root, [place]).outcome.reasons == {"duplicate": 1, "forbidden_extension": 1}
    assert run(root, [place], parity="megatron").outcome.kept == 3
    with pytest.raises(ValueError, match="one of the two"):
        BlacklistSettings(parity="megatron", domain_lists=("ut1",))


WORDS = """http https ftp :// : / // ? # @ . .. - _ [ ] ! ~ % %41 \\ ; & = google good.example bad.example www. a.b
reddit.com .co.uk com example 1.2.3.4 0x7f A é .pdf .PDF .7z .tar.gz pdf /bad /dir/ q?id=1 :80 :0 x.y http:// https://a."""
PARTS = st.sampled_from([*WORDS.split(), " ", "\t", "\x00", "a" * 64, "abcd." * 50])


@settings(max_examples=1000)
@given(
    st.lists(PARTS, max_size=8).map("".join)
    | st.lists(PARTS, max_size=6).map(lambda p: "http://good.example" + "".join(p))
)
def test_the_short_way_is_the_long_way(url: str) -> None:
    assert Judge(RULES)(url) == Judge(RULES).judge_any(url)


def test_the_short_way_is_taken() -> None:
    assert PLAIN.fullmatch("http://a-b.good.example/x.html?y=1&z#top")
    assert not PLAIN.fullmatch("http://good.example:80/") and not PLAIN.fullmatch("http://me@good.example/")


def test_site_names() -> None:
    hosts = ["maps.google.co.uk", "me.blogspot.com", "reddit.example", "example", "1.2.3.4"]
    assert [site_name(host) for host in hosts] == ["google", "blogspot", "reddit", "", ""]


def test_lists_in_both_layouts_of_ut1(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "domains").write_text("One.example\n# no\none.example\n")
    (tmp_path / "adult" / "urls").write_text("www.three.example/~x\n")
    (tmp_path / "adult" / "usage").write_text("black\n")
    (tmp_path / "ads.txt.gz").write_bytes(gzip.compress(b".two.example\none.example\n"))
    listed = read_listed([str(tmp_path)])
    assert [listed.domains[n] for n in range(len(listed.domains))] == [b"one.example", b"two.example"]
    assert listed.domains.find("a.one.example") == ("one.example", "ads")  # the first list that names it
    assert listed.urls == {"three.example/~x": "adult"}
    assert read_listed([str(tmp_path / "ads.txt.gz")]).domains.find("two.example") == ("two.example", "ads")
    assert read_listed([str(tmp_path / "adult")]).domains.find("one.example") == ("one.example", "adult")
    assert listed.digest != read_listed([str(tmp_path / "adult")]).digest
    check_listed([str(tmp_path)])
    for look in (read_listed, check_listed):
        with pytest.raises(UserError, match=r"cannot read .*none.txt"):
            look([str(tmp_path / "none.txt")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no list in .*domain-lists"):
        read_listed([str(tmp_path / "empty")])


@given(st.dictionaries(st.text(st.sampled_from("ab."), min_size=1, max_size=6), st.sampled_from("xyz")), st.text("ab."))
def test_packed_domains_find_what_a_dict_finds(entries: dict[str, str], host: str) -> None:
    below = [".".join(host.split(".")[n:]) for n in range(host.count(".") + 1)]
    expected = next(((name, entries[name]) for name in below if name and name in entries), None)
    if "" not in below[:-1]:  # an empty label ends the search; no host name has one
        assert pack(entries.items()).find(host) == expected


def test_the_real_list_with_its_reference_decisions(real_data: Path) -> None:
    """130,791 URLs and UT1 categories. The reference knows exact repetition and `has an http host`, nothing else."""
    with gzip.open(real_data / "urls" / "urls_expected.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [row.split("\t", 2) for row in file.read().split("\n")[1:] if row.count("\t") >= 2]
    counts = json.loads((real_data / "urls" / "expected_counts.json").read_text())["counts"]
    assert len(rows) == counts["total"]
    judge = Judge(Rules(listed=read_listed([str(real_data / "urls" / "blacklists")])))
    seen: set[bytes] = set()
    pairs: Counter[tuple[str, str]] = Counter()
    for decision, category, url in rows:
        found, detail, digest = judge(url)
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


# Repetition, and the step.


@given(st.lists(st.integers(0, 9), max_size=60), st.sampled_from([1, 4]))
def test_repeats_are_those_of_a_set(tmp_path_factory: pytest.TempPathFactory, numbers: list[int], cells: int) -> None:
    path = tmp_path_factory.getbasetemp() / "keys"
    seen: set[int] = set()
    expected = [row for row, number in enumerate(numbers) if number in seen or seen.add(number)]  # type: ignore[func-returns-value]
    with KeyWriter(path, cells) as writer:
        for row, number in enumerate(numbers):
            writer.add([bytes([number // 2 * 50]) * 8 + bytes([number % 2]) * 8], [row])
    entries = np.fromfile(path, dtype="<u8").reshape(-1, 3)
    assert repeats(entries).tolist() == expected
    found = []
    for cell in range(cells):  # each cell by itself finds its part
        parts = [entries[starts[cell] : starts[cell + 1]] for starts in writer.index] or [entries[:0]]
        found += repeats(np.concatenate(parts)).tolist()
    assert sorted(found) == expected


def test_cells_grow_with_the_lists() -> None:
    assert [cells_of(size) for size in (0, 2**26 - 1, 2**26, 10 * 2**26, 2**50)] == [1, 1, 2, 16, 256]


def write(path: Path, urls: list[str]) -> str:
    path.write_text("\n".join(urls) + "\n")
    return str(path)


def run(root: Folder, places: list[str], **settings: object) -> Manifest:
    return blacklist(root, find_url_lists(places), BlacklistSettings.model_validate(settings), Inline(1))


def urls_of(root: Folder, manifest: Manifest) -> list[str]:
    return [str(row["url"]) for record in manifest.outputs for row in read_rows(root / manifest.folder, record.name)]


POOL = [f"http://good.example/{n}" for n in range(9)] + ["http://x.com/a.pdf", "x"]


@settings(max_examples=25, deadline=None)
@given(
    lists=st.lists(st.lists(st.sampled_from(POOL), min_size=1, max_size=20), min_size=1, max_size=3),
    many=st.booleans(),
)
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
        patch.setattr("tasks.blacklist.repeats.SEGMENT", 3)
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


def test_rejected_rows_say_what_and_where(tmp_path: Path) -> None:
    lines = [
        "http://a.example/1",
        "# comment",
        "http://a.example/1#x",
        "http://a.example:x/",
        "http://a.example/" + "x" * 9000,
    ]
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


def test_a_list_without_a_good_url_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"every one of the 2 URLs .*forbidden_extension 1, too_short 1"):
        run(Folder(tmp_path / "out"), [write(tmp_path / "l.txt", ["http://a.example/x.pdf", "x"])])


def test_bytes_do_not_depend_on_the_hash_seed_or_workers(tmp_path: Path) -> None:
    write(tmp_path / "l.txt", [f"http://{name}.example/{n}" for n in range(99) for name in ("a", "google", "b")])
    write(tmp_path / "m.txt", [f"http://{name}.example/{n}" for n in range(120) for name in ("a", "c")])
    code = """if True:
        import sys
        from tasks.blacklist import BlacklistSettings, blacklist
        from tasks.runner import Runner
        from tasks.storage import Folder
        from tasks.urls import find_url_lists
        out, workers, *lists = sys.argv[1:]
        with Runner(int(workers)) as runner:
            print(blacklist(Folder(out), find_url_lists(lists), BlacklistSettings(), runner).identity)
    """
    identities = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed), seed, str(tmp_path / "l.txt"), str(tmp_path / "m.txt")],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(identities) == 1


MEASURED = """if True:
    import resource, sys, time
    from pathlib import Path
    from tasks.blacklist import BlacklistSettings, blacklist
    from tasks.storage import Folder
    from tasks.urls import find_url_lists
    from tests.tasks.corpus import Inline
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    with path.open("w") as file:
        for row in range(count):
            n = row % (count - 500)
            file.write(f"http://site{n % 50_000}.example.co.uk/articles/{n}.html\\n")
    start = time.process_time()
    root = Folder(path.parent / f"out-{count}")
    outcome = blacklist(root, find_url_lists([str(path)]), BlacklistSettings(), Inline(1)).outcome
    assert (outcome.kept, outcome.reasons) == (count - 500, {"duplicate": 500})
    print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_urls_in_fifteen_seconds_and_in_no_more_memory_than_half_a_million(tmp_path: Path) -> None:
    def measure(count: int) -> tuple[float, float]:
        command = [sys.executable, "-c", MEASURED, str(tmp_path / "list.txt"), str(count)]
        seconds, kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return float(seconds), int(kib) / 1024

    (_, half), (seconds, whole) = measure(500_000), measure(1_000_000)
    assert seconds <= 15
    assert whole - half < 40  # MiB; to hold the URLs would take 100, and as much again to know them
