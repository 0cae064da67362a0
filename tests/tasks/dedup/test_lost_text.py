"""Text that is lost: policy `containment`, its measurement, and the alarm for sources that lose almost everything."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, Manifest
from tasks.core.runner import Runner
from tasks.core.shards import read_rows, write_table
from tasks.dedup import datasketch_engine, kernels, reference, shingles
from tasks.dedup.lost_sources import LostSource, count_sources, lost_sources
from tasks.dedup.settings import WORD_NGRAM, DedupSettings, word_shingles
from tasks.dedup.step import dedup
from tests.tasks.corpus import content_of, documents_of, read_jsonl, real_texts, rejected_of, row, rows_of
from tests.tasks.dedup.dedup_helpers import audit, run
from tests.tasks.dedup.dedup_helpers import words as text

LOW: dict[str, Any] = {"threshold": 0.3, "num_bands": 24, "rows_per_band": 1}  # each planted pair is a candidate


PLANTED = [
    row(text((0, 170)), document_id="keeper"),
    row(text((0, 80), (300, 380)), document_id="half"),  # 80 words of `keeper`, and 80 of its own
    row(text((20, 150)), document_id="excerpt"),
    row(text((0, 170)).upper(), document_id="keeper-copy"),
    row(text((200, 260)), document_id="other"),
]


def kept_ids(done: tuple[Folder, Manifest]) -> set[str]:
    return {found["id"] for found in rows_of(*done)}


def test_a_document_of_which_the_keeper_lacks_half_is_kept(tmp_path: Path) -> None:
    greedy = run(tmp_path / "greedy", PLANTED, DedupSettings(**LOW), per_shard=3)
    assert kept_ids(greedy) == {"keeper", "other"}
    sizes = {document["id"]: len(document["text"]) for document in PLANTED}
    lost = [(found["number"], found["characters"], found["lost"]) for found in audit(*greedy, "lost/")]
    assert lost == [(1, sizes["half"], 640), (2, sizes["excerpt"], 0)]  # half of 1,279 characters
    facts = greedy[1].outcome.facts
    assert facts["lost_characters"] == 640
    assert facts["removed_characters"] == sizes["half"] + sizes["excerpt"] + sizes["keeper-copy"]

    safe = run(tmp_path / "safe", PLANTED, DedupSettings(policy="containment", **LOW), per_shard=3)
    assert kept_ids(safe) == {"keeper", "other", "half"}
    assert safe[1].outcome.facts["lost_characters"] == 0
    pairs = {pair["second_id"]: pair for pair in audit(*safe, "pairs/") if pair["first_id"] == "keeper"}
    assert pairs["excerpt"]["accepted"] and pairs["excerpt"]["containment"] == 1
    assert not pairs["half"]["accepted"] and pairs["half"]["containment"] == 78 / 158
    loose = DedupSettings(policy="containment", containment=78 / 158, **LOW)
    assert kept_ids(run(tmp_path / "loose", PLANTED, loose)) == {"keeper", "other"}


def test_a_longer_document_is_kept_beside_the_excerpt_of_a_previous_run(tmp_path: Path) -> None:
    """The previous document ranks better though it is shorter, so a low threshold loses what the new one adds."""
    old, _ = run(tmp_path / "old", [row(text((0, 100)), document_id="old")], DedupSettings(**LOW))
    new = [row(text((0, 200)), document_id="longer"), row(text((5, 95)), document_id="shorter")]
    for policy, kept, lost in (("greedy", set(), 800), ("containment", {"longer"}, 0)):
        settings = DedupSettings(policy=policy, previous=[f"{old.url}/dedup"], **LOW)
        done = run(tmp_path / policy, new, settings)
        assert kept_ids(done) == kept
        # 100 of 200 words; a word and its space are 8 characters.
        assert done[1].outcome.facts["lost_characters"] == pytest.approx(lost, abs=1)
        assert done[1].outcome.reasons["near_duplicate_earlier"] == 2 - len(kept)


@pytest.mark.slow
def test_a_near_duplicate_of_two_words_is_kept_by_containment(tmp_path: Path) -> None:
    """It has no 3-gram of words, so nothing shows that the other one holds its text."""
    rows = [row("abcdefghijklm nopqrstuvwxyz1", document_id="a"), row("abcdefghijklm nopqrstuvwxyz", document_id="b")]
    raw: dict[str, Any] = {"shingle": "characters", "num_bands": 24, "rows_per_band": 1}
    assert kept_ids(run(tmp_path / "greedy", rows, DedupSettings(**raw))) == {"a"}
    assert kept_ids(run(tmp_path / "safe", rows, DedupSettings(policy="containment", **raw))) == {"a", "b"}


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
@hypothesis_settings(deadline=None)
def test_lost_words_equal_plain_python(one: list[int], other: list[int]) -> None:
    grams = [[tuple(words[at : at + 3]) for at in range(len(words) - 2)] for words in (one, other)]
    covered = {at + step for at, gram in enumerate(grams[0]) if gram in grams[1] for step in range(3)}
    expected = (len(one) - len(covered)) / len(one) if grams[0] else 1
    texts = pa.array([" ".join(f"w{word}" for word in words) for words in (one, other)], pa.large_string())
    settings = word_shingles(DedupSettings(shingle="characters"))
    sequences, sets = shingles.shingle_sequences(texts, settings), shingles.shingle_sets(texts, settings)
    found = kernels.uncovered(*sequences, *sets, np.array([0]), np.array([1]), WORD_NGRAM)
    assert found.tolist() == [expected]


def test_sequences_of_both_engines_are_equal(open_data: Path) -> None:
    texts = pa.array(real_texts(open_data), pa.large_string())
    settings = word_shingles(DedupSettings())
    one, other = (engine.shingle_sequences(texts, settings) for engine in (shingles, datasketch_engine))
    assert np.array_equal(one.values, other.values) and np.array_equal(one.starts, other.starts)


@pytest.mark.slow
def test_containment_equals_the_reference_and_not_the_workers_decide(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz"))
    rows = [row(d["text"], d["url"], d["id"]) for d in found]
    settings = DedupSettings(policy="containment", threshold=0.5)
    with Runner(workers=2) as runner:
        root = Folder(tmp_path / "two")
        manifest = dedup(root, documents_of(root, rows, 700), settings, runner)
    done = run(tmp_path / "one", rows, settings, 700)
    assert content_of(*done) == content_of(root, manifest)

    grams = {d["id"]: set(reference.shingle_hashes(reference.folded(d["text"]), True, 3)) for d in rows}
    pairs = audit(*done, "pairs/")
    refused = 0
    for pair in pairs:
        if pair["jaccard"] < 0.5:
            assert pair["containment"] is None and not pair["accepted"]
            continue
        held = grams[pair["first_id"]] & grams[pair["second_id"]]
        assert pair["containment"] == len(held) / len(grams[pair["second_id"]])
        assert pair["accepted"] == (pair["containment"] >= 0.95)
        refused += not pair["accepted"]
    assert refused > 100
    for member in audit(*done, "clusters/"):
        if member["reason"] == "near_duplicate":
            assert len(grams[member["id"]] & grams[member["kept_id"]]) >= 0.95 * len(grams[member["id"]])

    # As with a hundred million documents: many groups, ranges of hashes, sets in pieces.
    monkeypatch.setattr("tasks.dedup.document_index.GROUP_ROWS", 400)
    monkeypatch.setattr("tasks.dedup.step.MAX_KEYS", 1000)
    for name in ("shingle_exchange", "verify"):
        monkeypatch.setattr(f"tasks.dedup.{name}.MAX_HASHES", 3000)
    small = run(tmp_path / "small", rows, settings, 200)
    assert len([record for record in small[1].outcome.audit if record.name.startswith("sketch/")]) == 8
    assert kept_ids(small) == kept_ids(done) and rejected_of(*small) == rejected_of(*done)
    for name, fields in (("pairs/", ("first_id", "second_id", "jaccard")), ("clusters/", ("cluster", "id", "kept_id"))):
        both = [{tuple(one[field] for field in fields) for one in audit(*run_, name)} for run_ in (small, done)]
        assert both[0] == both[1]
    assert small[1].outcome.facts["lost_characters"] == manifest.outcome.facts["lost_characters"] > 0


def test_defaults_keep_their_fingerprint(tmp_path: Path) -> None:
    """Parameters that have no effect on the files are not part of it."""
    default = run(tmp_path / "default", PLANTED)
    other = DedupSettings(containment=0.5, stop_on_lost_source=True)
    assert run(tmp_path / "other", PLANTED, other)[1].fingerprint == default[1].fingerprint
    assert {"containment", "stop_on_lost_source"}.isdisjoint(default[1].parameters)
    safe = run(tmp_path / "safe", PLANTED, DedupSettings(policy="containment", containment=0.8))
    assert safe[1].fingerprint != default[1].fingerprint and safe[1].parameters["containment"] == 0.8


def page(host: str, number: int, source: str, twist: str = "") -> dict[str, Any]:
    essay = " ".join(f"word{number}x{place}" for place in range(60))
    return row(essay + twist, f"https://{host}/{number}", f"{host}{number}") | {"source": source}


def corpus() -> list[dict[str, Any]]:
    """`Mirror.example` has 30 pages of which 28 are in `first.example`; `small.example` 19 copies of as many."""
    rows = [page("first.example:8443", number, "list", " and the end") for number in range(40)]
    rows += [page("user@Mirror.example", number, "archive") for number in range(28)]
    rows += [page("mirror.example", number, "archive") for number in (100, 101)]
    return rows + [page("small.example", number, "list") for number in range(19)]


def test_a_source_that_loses_nine_tenths_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpt2train"):
        root, manifest = run(tmp_path, corpus(), per_shard=17)
    lost = lost_sources(root / "dedup", manifest)
    assert lost == [LostSource("host", "mirror.example", 30, 28), LostSource("source", "archive", 30, 28)]
    [message] = caplog.messages
    assert message.startswith("dedup: host mirror.example lost 28 of 30 documents; source archive lost 28 of 30 docu")
    counts = {(found["kind"], found["name"]): found for found in audit(root, manifest, "sources/")}
    assert counts["host", "small.example"]["dropped"] == 19  # too few documents for an alarm
    assert ("host", "first.example") not in counts and counts["source", "list"]["documents"] == 59


def test_the_run_stops_by_setting_and_goes_on_without_it(tmp_path: Path) -> None:
    stop = DedupSettings(stop_on_lost_source=True)
    for _ in range(2):  # at the finished step too
        with pytest.raises(RunError, match=r"^dedup: host mirror\.example lost 28 of 30 .* = false to go on$") as error:
            run(tmp_path, corpus(), stop)
        assert "\n" not in str(error.value)
    _, manifest = run(tmp_path, corpus())
    assert len(rows_of(*run(tmp_path, corpus()))) == 42 == manifest.outcome.kept
    old, fine = run(tmp_path / "fine", corpus()[:40], stop)
    assert fine.outcome.kept == 40
    # Documents of a previous run are not lost.
    again = [page("mirror.example", number, "list") for number in range(38)]
    stop = DedupSettings(previous=(f"{old.url}/dedup",), stop_on_lost_source=True)
    assert run(tmp_path / "new", again, stop)[1].outcome.kept == 0


def test_hosts_of_odd_addresses(tmp_path: Path) -> None:
    hosts = {"http://[::1]:80/x": "[::1]", "HTTPS://User:pw@A.Example?q=://b": "a.example", "http://a@b@c/x": "c"}
    urls = [*hosts, "file.jsonl#3", "http:///path", ""]
    columns = {"url": urls, "source": pa.nulls(len(urls), pa.string()), "reason": ["exact_duplicate"] * len(urls)}
    rejected = write_table(Folder(tmp_path), "rejected.parquet", pa.table(columns))
    outcome = count_sources(Folder(tmp_path), "sources-00000", "", [], [rejected.name])
    found = {one["name"]: one["dropped"] for one in read_rows(Folder(tmp_path), outcome.outputs[0].name)}
    assert found == dict.fromkeys(hosts.values(), 1)
