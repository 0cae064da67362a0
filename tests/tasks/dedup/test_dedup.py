"""Deduplication end to end: planted duplicates, and results that do not depend on batches."""

import csv
import gzip
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tasks.core.runner import Runner
from tasks.core.shards import in_groups, read_rows
from tasks.core.step import Manifest
from tasks.core.storage import FileRecord, Folder
from tasks.dedup.cluster_report import largest_clusters
from tasks.dedup.clusters import Edges, choose_survivors, components_of
from tasks.dedup.lsh import pair_up_all, pair_with_pivots
from tasks.dedup.minhash import band_name, sketch_texts
from tasks.dedup.settings import DedupSettings
from tasks.dedup.step import dedup
from tests.tasks.corpus import Inline, content_of, documents_of, read_jsonl, rejected_of, row, rows_of
from tests.tasks.dedup import reference

TEXT = " ".join(f"word{i:02d}" for i in range(100))


def run(
    folder: Path, rows: list[dict[str, Any]], settings: DedupSettings | None = None, per_shard: int = 1000
) -> tuple[Folder, Manifest]:
    root = Folder(folder)
    documents = documents_of(root, rows, per_shard)
    with Inline(workers=1) as runner:
        return root, dedup(root, documents, settings or DedupSettings(), runner)


def audit(root: Folder, manifest: Manifest, kind: str) -> list[dict[str, Any]]:
    names = [record.name for record in manifest.outcome.audit if record.name.startswith(kind)]
    return [found for name in names for found in read_rows(root / "dedup", name)]


@pytest.fixture(scope="module")
def planted(real_data: Path) -> list[dict[str, Any]]:
    return [row(d["text"], d["url"], d["id"]) for d in read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz")]


@pytest.fixture(scope="module")
def planted_run(planted: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Manifest]:
    root = Folder(tmp_path_factory.mktemp("planted"))
    with Runner(workers=2) as runner:
        return root, dedup(root, documents_of(root, planted, 700), DedupSettings(), runner)


RAW = DedupSettings(shingle="characters", normalise=False)


def check_pairs(
    documents: list[dict[str, Any]], truth: Path, done: tuple[Folder, Manifest], slack: float = 0.01
) -> int:
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
    assert len(found.keys() & expected.keys()) / len(expected) >= promised - slack
    rejected = [p["jaccard"] for p in pairs if not p["accepted"]]
    assert rejected and max(rejected) < settings.threshold
    return len(expected)


def test_planted_duplicates_are_found_by_words(
    planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest], real_data: Path
) -> None:
    truth = real_data / "neardup/planted_dev/allpairs_w5_ge0.3.tsv.gz"
    assert check_pairs(planted, truth, planted_run) > 300


def test_planted_duplicates_are_found_by_characters(
    planted: list[dict[str, Any]], real_data: Path, tmp_path: Path
) -> None:
    truth = real_data / "neardup/planted_dev/allpairs_c5_ge0.5.tsv.gz"
    assert check_pairs(planted, truth, run(tmp_path / "16x8", planted, RAW)) > 600
    # Half of these pairs are where the curve of 10 x 10 is steep: one seed deviates by more than a point.
    assert check_pairs(planted, truth, run(tmp_path / "10x10", planted, DedupSettings(parity="megatron")), 0.03) > 600


@pytest.mark.parametrize(
    ("settings", "truth"),
    [(DedupSettings(), "w5_ge0.3"), (RAW, "c5_ge0.5"), (DedupSettings(parity="megatron"), "c5_ge0.5")],
    ids=["words", "characters", "megatron"],
)
def test_candidate_rates_follow_the_s_curve(
    planted: list[dict[str, Any]], real_data: Path, settings: DedupSettings, truth: str
) -> None:
    """Over six seeds, the share of pairs with a common band follows the curve at any similarity."""
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


@pytest.mark.parametrize(
    ("corpus", "kind", "settings"),
    [
        ("reuters", "w5_ge0.4", DedupSettings()),
        ("reuters", "c5_ge0.4", RAW),
        pytest.param("imdb", "w5_ge0.4", DedupSettings(), marks=pytest.mark.slow),
        pytest.param("imdb", "c5_ge0.7", RAW, marks=pytest.mark.slow),
    ],
)
def test_natural_pairs_are_found(
    real_data: Path, tmp_path: Path, corpus: str, kind: str, settings: DedupSettings
) -> None:
    found = read_jsonl(real_data / f"text/{corpus}_dev.jsonl.gz")
    rows = [row(d["text"], document_id=d["id"]) for d in found]
    done = run(tmp_path, rows, settings, 5000)
    assert check_pairs(rows, real_data / f"neardup/natural/{corpus}_dev.{kind}.tsv.gz", done) > 10


def test_every_dropped_document_is_verified_against_a_kept_one(
    planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest]
) -> None:
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
        assert reference.jaccard(*sets) == member["jaccard"]
        if member["reason"]:
            assert member["jaccard"] >= 0.8
            assert len(texts[member["kept_id"]]) >= len(texts[member["id"]])
            detail = dropped[member["id"]]["detail"]
            assert member["kept_url"] in detail and f"{member['jaccard']:.3f}" in detail
    assert all(len(ids) > 1 for ids in members.values())
    assert manifest.outcome.facts["clusters"] == len(members)
    assert manifest.outcome.seen == 3000 == manifest.outcome.kept + sum(manifest.outcome.reasons.values())


def test_the_largest_clusters_are_listed_with_their_texts(
    planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest]
) -> None:
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


def test_other_shards_and_workers_keep_the_same_documents(
    planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest], tmp_path: Path
) -> None:
    root, manifest = planted_run
    one, with_one_worker = run(tmp_path / "one", planted, per_shard=700)
    assert content_of(one, with_one_worker) == content_of(root, manifest)
    assert with_one_worker.fingerprint == manifest.fingerprint
    shuffled = planted.copy()
    random.Random(0).shuffle(shuffled)
    other, cut = run(tmp_path / "other", shuffled, per_shard=1100)
    assert {r["id"] for r in rows_of(other, cut)} == {r["id"] for r in rows_of(root, manifest)}
    outcomes = [
        {(r["id"], r["reason"], r["detail"]) for r in rejected_of(*done)} for done in ((root, manifest), (other, cut))
    ]
    assert outcomes[0] == outcomes[1]


def test_known_pairs_of_articles_are_found(open_data: Path, tmp_path: Path) -> None:
    check_articles(open_data / "neardup/minhash_articles_100", tmp_path)


def test_known_pairs_of_a_thousand_articles_are_found(real_data: Path, tmp_path: Path) -> None:
    check_articles(real_data / "neardup/minhash_articles_1000", tmp_path)


def check_articles(name: Path, tmp_path: Path) -> None:
    """The clusters are exactly the planted pairs."""
    articles = list(read_jsonl(name.with_suffix(".jsonl")))
    pairs = [line.split() for line in name.with_suffix(".truth.tsv").read_text().splitlines()[1:]]
    # These are planted at character-5-gram similarity >= 0.5: at a low threshold of words all must be found.
    settings = DedupSettings(threshold=0.5, num_bands=32, rows_per_band=4)
    root, manifest = run(tmp_path, [row(a["text"], document_id=a["id"]) for a in articles], settings)
    clusters = defaultdict(set)
    for member in audit(root, manifest, "clusters/"):
        clusters[member["cluster"]].add(member["id"])
    assert sorted(map(sorted, clusters.values())) == sorted(map(sorted, pairs))


def test_exact_copies_and_short_and_empty_texts_are_handled(tmp_path: Path) -> None:
    rows = [
        row("Two words", document_id="b"),
        row("two  WORDS\n", document_id="a"),
        row("Two words!", document_id="c"),
        row("...", document_id="d"),
        row("???", document_id="e"),
        row("", document_id="f"),
        row(" ", document_id="g"),
        row(TEXT, document_id="h"),
        row(TEXT.upper(), document_id="i"),
        row(TEXT.replace("word05 ", "word05, "), document_id="j"),
    ]
    root, manifest = run(tmp_path, rows, per_shard=3)
    # The longer copy stays (`a` and `g` have more white space), then the lower id; short texts must be equal.
    assert [r["id"] for r in rows_of(root, manifest)] == ["a", "c", "d", "e", "g", "j"]
    reasons = {r["id"]: (r["reason"], r["detail"]) for r in rejected_of(root, manifest)}
    assert {key: reason for key, (reason, _) in reasons.items()} == {
        "b": "exact_duplicate",
        "f": "exact_duplicate",
        "h": "near_duplicate",
        "i": "near_duplicate",
    }
    assert reasons["b"][1] == f"same text as {rows[1]['url']} (Jaccard 1.000)"
    assert manifest.outcome.reasons == {"exact_duplicate": 2, "near_duplicate": 2}


@pytest.mark.parametrize(("policy", "kept"), [("greedy", ["a", "c"]), ("connected", ["a"])])
def test_a_chain_of_duplicates_follows_the_policy(tmp_path: Path, policy: Any, kept: list[str]) -> None:
    """a ~ b ~ c, but a and c are too different: greedy keeps both ends, connected only the best."""
    words = TEXT.split()
    texts = {key: " ".join(words[start : start + 91]) for key, start in (("a", 0), ("b", 4), ("c", 8))}
    settings = DedupSettings(policy=policy, threshold=0.9, num_bands=64, rows_per_band=2)
    rows = [row(text, document_id=key) for key, text in texts.items()]
    root, manifest = run(tmp_path, rows, settings)
    assert [r["id"] for r in rows_of(root, manifest)] == kept
    assert {m["cluster"] for m in audit(root, manifest, "clusters/")} == {"a"}
    details = {r["id"]: r["detail"] for r in rejected_of(root, manifest)}
    assert details["b"] == f"much like {rows[0]['url']} (Jaccard 0.912)"
    if policy == "connected":
        assert details["c"] == f"much like {rows[0]['url']} (in one cluster, not compared)"


def test_empty_corpora_and_shards_are_handled(tmp_path: Path) -> None:
    root, manifest = run(tmp_path, [])
    assert (manifest.outcome.seen, manifest.outcome.kept) == (0, 0)
    assert rows_of(root, manifest) == []


def test_the_threshold_is_inclusive(tmp_path: Path) -> None:
    """8 common 1-grams of 10 are 0.8 exactly."""
    rows = [row("a1 a2 a3 a4 a5 a6 a7 a8 b1", document_id="x"), row("a1 a2 a3 a4 a5 a6 a7 a8 c1", document_id="y")]
    for threshold, kept in ((0.8, ["x"]), (0.800001, ["x", "y"])):
        settings = DedupSettings(ngram=1, threshold=threshold, num_bands=64, rows_per_band=1)
        root, manifest = run(tmp_path / str(threshold), rows, settings)
        assert [r["id"] for r in rows_of(root, manifest)] == kept


def test_only_files_of_the_manifest_are_left(planted_run: tuple[Folder, Manifest]) -> None:
    root, manifest = planted_run
    named = {record.name for record in manifest.outcome.files}
    assert set((root / "dedup").files()) == named | {"_manifest.json"}


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(1, 12))
@hypothesis_settings(deadline=None)
def test_buckets_give_each_pair_with_a_pivot_once(sizes: list[int], pivots: int) -> None:
    starts = np.cumsum([0, *sizes])
    small, hot = pair_up_all(np.arange(starts[-1]), starts, pivots)
    pairs = [tuple(pair) for part in [small, *(pair_with_pivots(b, pivots) for b in hot)] for pair in part.tolist()]
    expected = {
        (begin + a, begin + b)
        for begin, size in zip(starts.tolist(), sizes, strict=False)
        for b in range(size)
        for a in range(b if size <= pivots + 1 else min(b, pivots))
    }
    assert len(pairs) == len(set(pairs)) and set(pairs) == expected


def test_a_huge_bucket_takes_linear_time() -> None:
    for size in (100_000, 3_000_000, 9_000_000):
        assert size - 1 <= len(pair_with_pivots(np.arange(size), 64)) <= max(1 << 20, size)


GRAPHS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] < e[1]), max_size=20, unique=True
)


@given(GRAPHS, st.integers(0, 3))
@hypothesis_settings(deadline=None)
def test_survivors_follow_the_policy(graph: list[tuple[int, int]], fixed: int) -> None:
    graph = [(a, b) for a, b in graph if b >= fixed]  # none between two that are kept in any case
    weight = {(a, b): 0.8 + (a * 7 + b * 3) % 20 / 100 for a, b in graph}
    better, worse = np.array(graph, dtype=np.int64).reshape(-1, 2).T
    edges = Edges(better, worse, np.array(list(weight.values()), dtype=np.float64))
    components = components_of(10, better, worse)
    chosen, similarity = (column.tolist() for column in choose_survivors(edges, components, "greedy", fixed))
    for node in range(10):
        options = [(-weight[a, b], a) for a, b in graph if b == node and chosen[a] == a]
        assert (-similarity[node], chosen[node]) == min(options, default=(-1.0, node))
    assert chosen[:fixed] == list(range(fixed))
    chosen, similarity = (column.tolist() for column in choose_survivors(edges, components, "connected", fixed))
    same = components.tolist()
    assert chosen == [node if node < fixed else same.index(same[node]) for node in range(10)]
    assert all(same[a] == same[b] for a, b in graph)
    for node, other in enumerate(chosen):
        expected = 1.0 if other == node else weight.get((other, node))
        assert similarity[node] == expected or (expected is None and np.isnan(similarity[node]))


def test_shards_are_grouped_within_bounds() -> None:
    def record(rows: int, size: int = 1) -> FileRecord:
        return FileRecord(name="x", bytes=size, sha256="", rows=rows)

    def cut(*records: FileRecord) -> list[list[int]]:
        return [list(places) for places in in_groups(records, 10, 100, 4)]

    assert cut() == [[]]
    assert cut(record(11)) == [[0]]
    assert cut(*[record(4)] * 5) == [[0, 1], [2, 3], [4]]
    assert cut(record(1, 60), record(1, 60), record(1, 40)) == [[0], [1, 2]]
    assert cut(*[record(10)] * 16) == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8, 12)]


@pytest.mark.parametrize("policy", ["greedy", "connected"])
def test_small_groups_ranges_and_pieces_give_the_same_result(
    planted: list[dict[str, Any]],
    planted_run: tuple[Folder, Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Any,
) -> None:
    """As with a hundred million documents: many groups, ranges of hashes, sets in pieces."""
    settings = DedupSettings(policy=policy)
    expected = run(tmp_path / "expected", planted, settings, 200)
    monkeypatch.setattr("tasks.dedup.document_index.GROUP_ROWS", 400)
    monkeypatch.setattr("tasks.dedup.step.MAX_KEYS", 1000)
    monkeypatch.setattr("tasks.dedup.shingle_exchange.MAX_HASHES", 3000)
    monkeypatch.setattr("tasks.dedup.verify.MAX_HASHES", 3000)
    done = run(tmp_path / "small", planted, settings, 200)
    assert len([r for r in done[1].outcome.audit if r.name.startswith("sketch/")]) == 8
    assert rejected_of(*done) == rejected_of(*expected)
    pairs = [sorted((p["first"], p["second"], p["jaccard"]) for p in audit(*d, "pairs/")) for d in (done, expected)]
    assert pairs[0] == pairs[1]
    assert audit(*done, "clusters/") == audit(*expected, "clusters/")


def test_boilerplate_in_a_hot_bucket_gives_linear_pairs(tmp_path: Path) -> None:
    """3,000 pages that differ in one word of two hundred: one stays, and the pairs are linear in their number."""
    words = " ".join(f"word{number:03d}" for number in range(200))
    rows = [row(f"{words} page{number:05d}", document_id=f"{number:05d}") for number in range(3000)]
    root, manifest = run(tmp_path, rows, DedupSettings(bucket_pivots=8))
    assert [r["id"] for r in rows_of(root, manifest)] == ["00000"]
    assert manifest.outcome.facts["hot_buckets"] == 16
    assert manifest.outcome.facts["candidate_pairs"] <= 2 * 8 * 3000  # not every page is in each of the buckets


def test_parity_sets_the_defaults_of_settings_not_given() -> None:
    settings = DedupSettings(parity="megatron", rows_per_band=9)
    assert (settings.shingle, settings.num_bands, settings.rows_per_band, settings.threshold) == (
        "characters",
        10,
        9,
        0.7,
    )
    assert DedupSettings(**settings.model_dump()) == settings
    assert DedupSettings().num_bands == 16


def test_parity_includes_the_last_shingle_unlike_megatron(tmp_path: Path) -> None:
    """Five letters are one shingle: Megatron's `range(0, len - 5)` had none."""
    rows = [row("abcde", document_id="a"), row("abcde", document_id="b"), row("abcdf", document_id="c")]
    root, manifest = run(tmp_path, rows, DedupSettings(parity="megatron"))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a", "c"]
    sketch = audit(root, manifest, "sketch/")
    assert all(r["band_00"] is not None for r in sketch) and sketch[0]["band_00"] != sketch[2]["band_00"]
