"""Deduplication against previous runs: repeated documents are dropped, earlier ones stay, mistakes are named."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.core.shards import read_rows
from tasks.dedup.cluster_report import largest_clusters
from tasks.dedup.step import DedupSettings, dedup
from tests.tasks.corpus import Inline, content_of, documents_of, read_jsonl, rejected_of, row, rows_of

WORDS = [f"word{number:03d}" for number in range(400)]


def text(start: int, count: int = 100) -> str:
    return " ".join(WORDS[start : start + count])


def run(folder: Path, rows: list[dict[str, Any]], per_shard: int = 3, **settings: Any) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    with Inline(workers=1) as runner:
        return root, dedup(root, documents_of(root, rows, per_shard), DedupSettings(**settings), runner)


OLD = [
    row(text(0, 95), document_id="short"),  # dropped: `long` repeats it
    row(text(0, 100), document_id="long"),
    row("Just two", document_id="two"),
    row("just  TWO", document_id="copy"),
    row(text(200), document_id="other"),
    row(text(300), document_id="last"),
]
NEW = [
    row(text(100), document_id="new"),
    row(text(0, 100).upper(), document_id="again"),
    row(text(2, 110), document_id="longer"),  # longer than what it repeats, and goes all the same
    row("JUST TWO", document_id="two-again"),
    row(text(203), document_id="other-again"),
    row(text(100, 99), document_id="new-again"),
    row(text(203), document_id="copy-of-other-again"),
]


@pytest.mark.parametrize("policy", ["greedy", "connected"])
def test_documents_of_a_previous_run_are_not_kept_again(tmp_path: Path, policy: Any) -> None:
    old, _ = run(tmp_path / "old", OLD)
    before = {name: (tmp_path / "old/dedup" / name).read_bytes() for name in Folder(tmp_path / "old/dedup").files()}
    root, manifest = run(tmp_path / "new", NEW, policy=policy, previous=[f"{old.url}/dedup"])
    assert [r["id"] for r in rows_of(root, manifest)] == ["new"]
    fates = {r["id"]: (r["reason"], r["detail"].split(" (")[0]) for r in rejected_of(root, manifest)}
    url = {document["id"]: document["url"] for document in OLD + NEW}
    assert fates == {
        "again": ("exact_duplicate_earlier", f"same text as {url['long']}"),
        "longer": ("near_duplicate_earlier", f"much like {url['long']}"),
        "two-again": ("exact_duplicate_earlier", f"same text as {url['copy']}"),
        "other-again": ("near_duplicate_earlier", f"much like {url['other']}"),
        "copy-of-other-again": ("near_duplicate_earlier", f"much like {url['other']}"),
        "new-again": ("near_duplicate", f"much like {url['new']}"),
    }
    clusters = [r for name in audits(manifest) for r in read_rows(root / "dedup", name)]
    assert {r["id"] for r in clusters if r["earlier"] == 0} == {"long", "copy", "other"}
    assert all(r["reason"] is None for r in clusters if r["earlier"] is not None)
    assert {c.id: c.size for c in largest_clusters(root / "dedup", manifest)} == {
        "long": 3,
        "other": 3,
        "copy": 2,
        "new": 2,
    }
    assert {name: (tmp_path / "old/dedup" / name).read_bytes() for name in before} == before


def audits(manifest: Manifest) -> list[str]:
    return [record.name for record in manifest.outcome.audit if record.name.startswith("clusters/")]


@pytest.mark.exhaustive
def test_crawls_deduplicated_in_turn_leave_no_pair(real_data: Path, tmp_path: Path) -> None:
    """No pair of kept documents, of whichever crawl, is a verified pair of the deduplication of all of them."""
    found = list(read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz"))[:1500]
    rows = [row(d["text"], d["url"], d["id"]) for d in found]
    together, whole = run(tmp_path / "whole", rows, 400)
    pairs = [
        {p["first_id"], p["second_id"]}
        for record in whole.outcome.audit
        if record.name.startswith("pairs/")
        for p in read_rows(together / "dedup", record.name)
        if p["accepted"]
    ]
    done = []
    for part in range(3):
        previous = [f"{root.url}/dedup" for root, _ in done]
        done.append(run(tmp_path / str(part), rows[500 * part : 500 * (part + 1)], 170, previous=previous))
    kept = {r["id"] for root, manifest in done for r in rows_of(root, manifest)}
    assert len(pairs) > 50 and not [pair for pair in pairs if pair <= kept]
    assert abs(len(kept) - whole.outcome.kept) < 25  # another order leaves other ones
    assert sum("_earlier" in reason for reason in done[2][1].outcome.reasons) == 2


def test_the_fingerprint_depends_on_content_and_not_on_the_path(tmp_path: Path) -> None:
    run(tmp_path / "old", OLD)
    _, first = run(tmp_path / "new", NEW, previous=[str(tmp_path / "old/dedup")])
    (tmp_path / "old").rename(tmp_path / "moved")
    _, moved = run(tmp_path / "new", NEW, previous=[str(tmp_path / "moved/dedup")])
    assert moved.fingerprint == first.fingerprint
    run(tmp_path / "moved", OLD[:3])
    root, changed = run(tmp_path / "new", NEW, previous=[str(tmp_path / "moved/dedup")])
    assert changed.fingerprint != first.fingerprint
    assert {r["id"] for r in rows_of(root, changed)} == {"new", "copy-of-other-again"}


def test_the_number_of_shards_does_not_matter(tmp_path: Path) -> None:
    kept = []
    for name, per_shard in (("a", 1), ("b", 4)):
        old, _ = run(tmp_path / f"{name}-old", OLD, per_shard)
        root, manifest = run(tmp_path / name, NEW, per_shard, previous=[f"{old.url}/dedup"])
        kept.append({(r["id"], r["reason"], r["detail"]) for r in rejected_of(root, manifest)})
    assert kept[0] == kept[1]


def test_an_empty_crawl_or_previous_run_is_handled(tmp_path: Path) -> None:
    empty, _ = run(tmp_path / "empty", [])
    root, manifest = run(tmp_path / "new", NEW, previous=[f"{empty.url}/dedup"])
    alone = run(tmp_path / "alone", NEW)
    assert content_of(root, manifest).keys() == content_of(*alone).keys()
    assert rows_of(root, manifest) == rows_of(*alone)
    old, _ = run(tmp_path / "old", OLD)
    assert run(tmp_path / "nothing", [], previous=[f"{old.url}/dedup"])[1].outcome.kept == 0


def test_mistakes_are_named(tmp_path: Path) -> None:
    old, manifest = run(tmp_path / "old", OLD)
    with pytest.raises(UserError, match=r"dedup\.num_bands = 16, not 20; sketches can be compared only if"):
        run(tmp_path / "new", NEW, num_bands=20, previous=[f"{old.url}/dedup"])
    run(tmp_path / "fine", NEW, threshold=0.7, bucket_pivots=3, previous=[f"{old.url}/dedup"])
    with pytest.raises(UserError, match="holds no finished deduplication"):
        run(tmp_path / "new", NEW, previous=[str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match="holds no finished deduplication"):
        run(tmp_path / "new", NEW, previous=[f"{old.url}/clean"])
    with pytest.raises(UserError, match="is the output of this run; give another --output"):
        run(tmp_path / "old", NEW, previous=[f"{old.url}/dedup"])
    (tmp_path / "old/dedup" / manifest.outputs[1].name).unlink()
    with pytest.raises(UserError, match=r"part-00001\.parquet is missing or damaged; run that output again first"):
        run(tmp_path / "new", NEW, previous=[f"{old.url}/dedup"])
