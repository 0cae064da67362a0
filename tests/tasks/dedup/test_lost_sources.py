"""Alarm for hosts and sources that lose almost all of their documents."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpt2train.errors import RunError
from gpt2train.store.folder import Folder
from tasks.core.shards import read_rows, write_table
from tasks.dedup.lost_sources import LostSource, count_sources, lost_sources
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import row, rows_of
from tests.tasks.dedup.dedup_helpers import audit, run


def text(number: int) -> str:
    return " ".join(f"word{number}x{place}" for place in range(60))


def page(host: str, number: int, source: str, twist: str = "") -> dict[str, Any]:
    return row(text(number) + twist, f"https://{host}/{number}", f"{host}{number}") | {"source": source}


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
    assert run(tmp_path / "fine", corpus()[:40], stop)[1].outcome.kept == 40


def test_documents_of_a_previous_run_are_not_lost(tmp_path: Path) -> None:
    old, _ = run(tmp_path / "old", corpus()[:40])
    again = [page("mirror.example", number, "list") for number in range(38)]
    stop = DedupSettings(previous=(f"{old.url}/dedup",), stop_on_lost_source=True)
    _, manifest = run(tmp_path / "new", again, stop)
    assert manifest.outcome.kept == 0


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://[::1]:80/x", "[::1]"),
        ("HTTPS://User:pw@A.Example?q=://b", "a.example"),
        ("file.jsonl#3", None),
        ("http:///path", None),
        ("", None),
        ("http://a@b@c/x", "c"),
    ],
)
def test_hosts_of_odd_addresses(tmp_path: Path, url: str, host: str | None) -> None:
    columns = {"url": [url], "source": pa.array([None], pa.string()), "reason": ["exact_duplicate"]}
    rejected = write_table(Folder(tmp_path), "rejected.parquet", pa.table(columns))
    outcome = count_sources(Folder(tmp_path), "sources-00000", "", [], [rejected.name])
    found = [one["name"] for one in read_rows(Folder(tmp_path), outcome.outputs[0].name)]
    assert found == ([] if host is None else [host])
