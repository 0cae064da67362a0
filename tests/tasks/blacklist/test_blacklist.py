"""The blacklist step: duplicates, order, shards, rejected rows, reproducible bytes, memory."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.blacklist.duplicate_urls import KeyWriter, cells_of, duplicate_positions
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


def test_the_number_of_cells_grows_with_the_lists() -> None:
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


def test_a_list_without_any_kept_url_reports_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"every one of the 2 URLs .*forbidden_extension 1, too_short 1"):
        run(Folder(tmp_path / "out"), [write(tmp_path / "l.txt", ["http://a.example/x.pdf", "x"])])
