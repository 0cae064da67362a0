"""Deduplication end to end: planted duplicates, any batches, previous runs, and sixty thousand documents in bounds."""

import csv
import gzip
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.dedup import GIGA, measure, recall
from benchmarks.synthetic import COPIES, HUNDRED
from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, Manifest
from tasks.dedup import reference
from tasks.dedup.bands import with_bands
from tasks.dedup.cluster_report import largest_clusters
from tasks.dedup.minhash import band_name, sketch_texts
from tasks.dedup.step import DedupSettings, dedup
from tests.tasks.corpus import Inline, content_of, documents_of, read_jsonl, rejected_of, row, rows_of
from tests.tasks.dedup.dedup_helpers import audit, jaccard, run, words

Rows = list[dict[str, Any]]
Done = tuple[Folder, Manifest]


@pytest.fixture(scope="module")
def planted(real_data: Path) -> Rows:
    return [row(d["text"], d["url"], d["id"]) for d in read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz")]


@pytest.fixture(scope="module")
def planted_run(planted: Rows, tmp_path_factory: pytest.TempPathFactory) -> Done:
    root = Folder(tmp_path_factory.mktemp("planted"))
    with Inline(workers=1) as runner:
        return root, dedup(root, documents_of(root, planted, 700), DedupSettings(), runner)


RAW = DedupSettings(shingle="characters", normalise=False)


def check_pairs(documents: Rows, truth: Path, done: Done) -> int:
    """Precision 1.0 at the threshold, recall of pairs within a point of what the S-curve promises. The count."""
    root, manifest = done
    settings = DedupSettings(**manifest.parameters)
    with gzip.open(truth, "rt") as file:
        exact = {frozenset((r["id_a"], r["id_b"])): float(r["jaccard"]) for r in csv.DictReader(file, delimiter="\t")}
    pairs = audit(root, manifest, "pairs/")
    found = {frozenset((p["first_id"], p["second_id"])): p["jaccard"] for p in pairs if p["accepted"]}
    # Exact copies are dropped before pairs are formed: a pair with one of them cannot be found, and need not be.
    best: dict[str, str] = {}
    for document in sorted(documents, key=lambda d: (-len(d["text"]), d["id"])):
        best.setdefault(reference.folded(document["text"]) if settings.normalise else document["text"], document["id"])
    copies = {document["id"] for document in documents} - set(best.values())
    expected = {pair: j for pair, j in exact.items() if j >= settings.threshold and not pair & copies}
    assert found.keys() <= exact.keys()
    assert all(exact[pair] > settings.threshold - 1e-5 and abs(exact[pair] - j) < 1e-5 for pair, j in found.items())
    promised = sum(1 - (1 - j**settings.rows_per_band) ** settings.num_bands for j in expected.values()) / len(expected)
    assert len(found.keys() & expected.keys()) / len(expected) >= promised - 0.01
    rejected = [p["jaccard"] for p in pairs if not p["accepted"]]
    assert rejected and max(rejected) < settings.threshold
    return len(expected)


@pytest.mark.slow
def test_planted_duplicates_are_found_by_words(planted: Rows, planted_run: Done, real_data: Path) -> None:
    truth = real_data / "neardup/planted_dev/allpairs_w5_ge0.3.tsv.gz"
    assert check_pairs(planted, truth, planted_run) > 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "truth"),
    [(DedupSettings(), "w5_ge0.3"), (RAW, "c5_ge0.5"), (DedupSettings(parity="megatron"), "c5_ge0.5")],
    ids=["words", "characters", "megatron"],
)
def test_candidate_rates_follow_the_s_curve(
    planted: Rows, real_data: Path, settings: DedupSettings, truth: str
) -> None:
    """Over six seeds, the share of pairs with a common band follows the curve at any similarity."""
    settings = with_bands(settings)
    texts = pa.array([document["text"] for document in planted], pa.large_string())
    places = {document["id"]: place for place, document in enumerate(planted)}
    with gzip.open(real_data / f"neardup/planted_dev/allpairs_{truth}.tsv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if float(row["jaccard"]) < 1]
    one, other = (np.array([places[row[name]] for row in rows]) for name in ("id_a", "id_b"))
    exact = np.array([float(row["jaccard"]) for row in rows])
    promised = 1 - (1 - exact**settings.rows_per_band) ** settings.num_bands
    shares = []
    for seed in range(1, 7):
        sketch = sketch_texts(texts, settings.model_copy(update={"seed": seed}))
        bands = np.stack([sketch[band_name(band)].to_numpy(zero_copy_only=False) for band in range(settings.num_bands)])
        shares.append((bands[:, one] == bands[:, other]).any(axis=0))
    found = np.mean(shares, axis=0)
    assert abs(found.mean() - promised.mean()) < 0.01
    for low, high in ((0.3, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 1)):
        inside = (exact >= low) & (exact < high)
        assert not inside.any() or abs(found[inside].mean() - promised[inside].mean()) < 0.04  # one seed: 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), [("w5_ge0.4", DedupSettings()), ("c5_ge0.4", RAW)])
def test_natural_pairs_are_found(real_data: Path, tmp_path: Path, kind: str, settings: DedupSettings) -> None:
    rows = [row(d["text"], document_id=d["id"]) for d in read_jsonl(real_data / "text/reuters_dev.jsonl.gz")]
    done = run(tmp_path, rows, settings, 5000)
    assert check_pairs(rows, real_data / f"neardup/natural/reuters_dev.{kind}.tsv.gz", done) > 10


@pytest.mark.slow
def test_every_dropped_document_has_a_kept_one(planted: Rows, planted_run: Done) -> None:
    root, manifest = planted_run
    texts = {document["id"]: document["text"] for document in planted}
    kept = {document["id"] for document in rows_of(root, manifest)}
    dropped = {r["id"]: r for r in rejected_of(root, manifest)}
    assert kept | dropped.keys() == texts.keys() and not kept & dropped.keys()
    members = defaultdict(set)
    for member in audit(root, manifest, "clusters/"):
        members[member["cluster"]].add(member["id"])
        assert (member["reason"] is None) == (member["id"] in kept)
        assert member["kept_id"] in kept
        sets = [reference.shingle_hashes(reference.folded(texts[member[name]]), True, 5) for name in ("id", "kept_id")]
        assert jaccard(*sets) == member["jaccard"]
        if member["reason"]:
            assert member["jaccard"] >= 0.8
            assert len(texts[member["kept_id"]]) >= len(texts[member["id"]])
            detail = dropped[member["id"]]["detail"]
            assert member["kept_url"] in detail and f"{member['jaccard']:.3f}" in detail
    assert all(len(ids) > 1 for ids in members.values())
    assert manifest.outcome.facts["clusters"] == len(members)
    assert manifest.outcome.seen == 3000 == manifest.outcome.kept + sum(manifest.outcome.reasons.values())


def test_the_largest_clusters_are_listed_with_their_texts(planted: Rows, planted_run: Done) -> None:
    root, manifest = planted_run
    texts = {document["id"]: document["text"] for document in planted}
    sizes: dict[str, int] = defaultdict(int)
    for member in audit(root, manifest, "clusters/"):
        sizes[member["cluster"]] += 1
    largest = largest_clusters(root / "dedup", manifest, count=7, members=3)
    assert [(c.id, c.size) for c in largest] == sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:7]
    for cluster in largest:
        assert len(cluster.members) == 3 and cluster.members[0].id == cluster.id
        kept = [member for member in cluster.members if member.reason is None]
        assert kept and all(member.kept_id == member.id for member in kept)
        assert all(member.excerpt == texts[member.id][:300] for member in cluster.members)


@pytest.mark.slow
def test_other_shards_and_another_order_keep_the_same_documents(
    planted: Rows, planted_run: Done, tmp_path: Path
) -> None:
    shuffled = planted.copy()
    random.Random(0).shuffle(shuffled)
    runs = (planted_run, run(tmp_path, shuffled, per_shard=1100))
    one, other = ({(r["id"], r.get("reason"), r.get("detail")) for r in (*rows_of(*d), *rejected_of(*d))} for d in runs)
    assert one == other


def test_known_pairs_of_articles_are_found(open_data: Path, tmp_path: Path) -> None:
    """The clusters are exactly the planted pairs."""
    name = open_data / "neardup/minhash_articles_100"
    articles = list(read_jsonl(name.with_suffix(".jsonl")))
    pairs = [line.split() for line in name.with_suffix(".truth.tsv").read_text().splitlines()[1:]]
    # These are planted at character-5-gram similarity >= 0.5: at a low threshold of words all must be found.
    settings = DedupSettings(threshold=0.5, num_bands=32, rows_per_band=4)
    root, manifest = run(tmp_path, [row(a["text"], document_id=a["id"]) for a in articles], settings)
    clusters = defaultdict(set)
    for member in audit(root, manifest, "clusters/"):
        clusters[member["cluster"]].add(member["id"])
    assert sorted(map(sorted, clusters.values())) == sorted(map(sorted, pairs))


def test_only_files_of_the_manifest_are_left(planted_run: Done) -> None:
    root, manifest = planted_run
    named = {record.name for record in manifest.outcome.files}
    assert set((root / "dedup").files()) == named | {"_manifest.json"}


COUNT = 60_000


@pytest.mark.slow
@pytest.mark.alone
def test_sixty_thousand_documents_are_deduplicated_in_bounds(tmp_path: Path) -> None:
    """All that is planted is found; `benchmarks.dedup` does it with a million."""
    settings = with_bands(DedupSettings())
    measured = measure(Folder(tmp_path), COUNT, 2, settings)
    reasons = measured.manifest.outcome.reasons
    # One word of the 300 differs at 0.99, and in a few documents by chance it does not.
    assert COUNT * COPIES // HUNDRED <= reasons["exact_duplicate"] < COUNT * COPIES // HUNDRED + 10
    for similarity, share in recall(Folder(tmp_path), measured.manifest, COUNT, settings).items():
        promised = 1 - (1 - similarity**settings.rows_per_band) ** settings.num_bands
        # Of 600 pairs each: three standard deviations, and what became an exact copy at 0.99.
        assert share > promised - 3 * (promised * (1 - promised) / 600) ** 0.5 - 0.005
    assert measured.bytes < 2 * GIGA  # the gate of a million is 4
    assert measured.core_seconds / COUNT < 1800e-6  # 15 minutes of two cores for a million


def text(start: int, count: int = 100) -> str:
    return words((start, start + count))


def run_with(folder: Path, rows: Rows, per_shard: int = 3, **settings: Any) -> Done:
    return run(folder, rows, DedupSettings(**settings), per_shard)


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
    old, _ = run_with(tmp_path / "old", OLD)
    before = {name: (tmp_path / "old/dedup" / name).read_bytes() for name in Folder(tmp_path / "old/dedup").files()}
    root, manifest = run_with(tmp_path / "new", NEW, policy=policy, previous=[f"{old.url}/dedup"])
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
    clusters = audit(root, manifest, "clusters/")
    assert {r["id"] for r in clusters if r["earlier"] == 0} == {"long", "copy", "other"}
    assert all(r["reason"] is None for r in clusters if r["earlier"] is not None)
    sizes = {cluster.id: cluster.size for cluster in largest_clusters(root / "dedup", manifest)}
    assert sizes == {"long": 3, "other": 3, "copy": 2, "new": 2}
    assert {name: (tmp_path / "old/dedup" / name).read_bytes() for name in before} == before


@pytest.mark.exhaustive
def test_crawls_deduplicated_in_turn_leave_no_pair(real_data: Path, tmp_path: Path) -> None:
    """No pair of kept documents, of whichever crawl, is a verified pair of the deduplication of all of them."""
    found = list(read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz"))[:1500]
    rows = [row(d["text"], d["url"], d["id"]) for d in found]
    together, whole = run_with(tmp_path / "whole", rows, 400)
    pairs = [{p["first_id"], p["second_id"]} for p in audit(together, whole, "pairs/") if p["accepted"]]
    done = []
    for part in range(3):
        previous = [f"{root.url}/dedup" for root, _ in done]
        done.append(run_with(tmp_path / str(part), rows[500 * part : 500 * (part + 1)], 170, previous=previous))
    kept = {r["id"] for root, manifest in done for r in rows_of(root, manifest)}
    assert len(pairs) > 50 and not [pair for pair in pairs if pair <= kept]
    assert abs(len(kept) - whole.outcome.kept) < 25  # another order leaves other ones
    assert sum("_earlier" in reason for reason in done[2][1].outcome.reasons) == 2


def test_the_fingerprint_depends_on_content_and_not_on_the_path(tmp_path: Path) -> None:
    run_with(tmp_path / "old", OLD)
    _, first = run_with(tmp_path / "new", NEW, previous=[str(tmp_path / "old/dedup")])
    (tmp_path / "old").rename(tmp_path / "moved")
    _, moved = run_with(tmp_path / "new", NEW, previous=[str(tmp_path / "moved/dedup")])
    assert moved.fingerprint == first.fingerprint
    run_with(tmp_path / "moved", OLD[:3])
    root, changed = run_with(tmp_path / "new", NEW, previous=[str(tmp_path / "moved/dedup")])
    assert changed.fingerprint != first.fingerprint
    assert {r["id"] for r in rows_of(root, changed)} == {"new", "copy-of-other-again"}


def test_the_number_of_shards_does_not_matter(tmp_path: Path) -> None:
    kept = []
    for name, per_shard in (("a", 1), ("b", 4)):
        old, _ = run_with(tmp_path / f"{name}-old", OLD, per_shard)
        root, manifest = run_with(tmp_path / name, NEW, per_shard, previous=[f"{old.url}/dedup"])
        kept.append({(r["id"], r["reason"], r["detail"]) for r in rejected_of(root, manifest)})
    assert kept[0] == kept[1]


def test_an_empty_crawl_or_previous_run_is_handled(tmp_path: Path) -> None:
    empty, _ = run_with(tmp_path / "empty", [])
    root, manifest = run_with(tmp_path / "new", NEW, previous=[f"{empty.url}/dedup"])
    alone = run_with(tmp_path / "alone", NEW)
    assert content_of(root, manifest).keys() == content_of(*alone).keys()
    assert rows_of(root, manifest) == rows_of(*alone)
    old, _ = run_with(tmp_path / "old", OLD)
    assert run_with(tmp_path / "nothing", [], previous=[f"{old.url}/dedup"])[1].outcome.kept == 0


def test_mistakes_are_named(tmp_path: Path) -> None:
    old, manifest = run_with(tmp_path / "old", OLD)
    with pytest.raises(UserError, match=r"dedup\.num_bands = 16, not 20; sketches can be compared only if"):
        run_with(tmp_path / "new", NEW, num_bands=20, previous=[f"{old.url}/dedup"])
    run_with(tmp_path / "fine", NEW, threshold=0.7, bucket_pivots=3, previous=[f"{old.url}/dedup"])
    with pytest.raises(UserError, match="holds no finished deduplication"):
        run_with(tmp_path / "new", NEW, previous=[str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match="holds no finished deduplication"):
        run_with(tmp_path / "new", NEW, previous=[f"{old.url}/clean"])
    with pytest.raises(UserError, match="is the output of this run; give another --output"):
        run_with(tmp_path / "old", NEW, previous=[f"{old.url}/dedup"])
    (tmp_path / "old/dedup" / manifest.outputs[1].name).unlink()
    with pytest.raises(UserError, match=r"part-00001\.parquet is missing or damaged; run that output again first"):
        run_with(tmp_path / "new", NEW, previous=[f"{old.url}/dedup"])
