"""Deduplication end to end: against planted truth, and the same answer however the work is cut."""

import csv
import gzip
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tasks.dedup import DedupSettings, dedup, largest_clusters
from tasks.dedup.clusters import Edge, components_of, keepers
from tasks.dedup.pairs import pair_up
from tasks.dedup.shingles import WordHashes, content_hash, jaccard, normalise, shingle_set
from tasks.runner import Runner
from tasks.shards import read_rows
from tasks.steps import Manifest
from tasks.storage import Folder
from tests.tasks.corpus import Inline, content_of, documents_of, read_jsonl, rejected_of, row, rows_of

TEXT = " ".join(f"word{i:02d}" for i in range(100))


def run(
    place: Path, rows: list[dict[str, Any]], settings: DedupSettings | None = None, per_shard: int = 1000
) -> tuple[Folder, Manifest]:
    root = Folder(place)
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


def test_planted_truth(planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest], real_data: Path) -> None:
    """Precision 1.0 at the threshold; recall of pairs within a point of what the S-curve of 16 x 8 promises."""
    root, manifest = planted_run
    with gzip.open(real_data / "neardup/planted_dev/allpairs_w5_ge0.3.tsv.gz", "rt") as file:
        lines = csv.DictReader(file, delimiter="\t")
        truth = {frozenset((line["id_a"], line["id_b"])): float(line["jaccard"]) for line in lines}
    pairs = audit(root, manifest, "pairs/")
    found = {frozenset((p["first_id"], p["second_id"])): p["jaccard"] for p in pairs if p["accepted"]}
    # Exact copies go before pairs are made: a pair with one of them cannot be found, and need not.
    best: dict[bytes, str] = {}
    for document in sorted(planted, key=lambda d: (-len(d["text"]), d["id"])):
        best.setdefault(content_hash(normalise(document["text"])), document["id"])
    copies = {document["id"] for document in planted} - set(best.values())
    expected = {pair: j for pair, j in truth.items() if j >= 0.8 and not pair & copies}
    assert len(expected) > 300
    assert found.keys() <= truth.keys()
    assert all(truth[pair] >= 0.8 and abs(truth[pair] - j) < 1e-5 for pair, j in found.items())
    promised = sum(1 - (1 - j**8) ** 16 for j in expected.values()) / len(expected)
    assert len(found.keys() & expected.keys()) / len(expected) >= promised - 0.01
    rejected = [p["jaccard"] for p in pairs if not p["accepted"]]
    assert rejected and max(rejected) < 0.8


def test_every_dropped_document_is_verified_against_a_kept_one(
    planted: list[dict[str, Any]], planted_run: tuple[Folder, Manifest]
) -> None:
    root, manifest = planted_run
    texts = {document["id"]: document["text"] for document in planted}
    kept = {document["id"] for document in rows_of(root, manifest)}
    dropped = {r["id"]: r for r in rejected_of(root, manifest)}
    assert kept | dropped.keys() == texts.keys() and not kept & dropped.keys()
    cache = WordHashes()
    members = defaultdict(set)
    for member in audit(root, manifest, "clusters/"):
        members[member["cluster"]].add(member["id"])
        assert (member["reason"] is None) == (member["id"] in kept)
        assert member["kept_id"] in kept
        sets = [shingle_set(texts[member[name]], 5, cache) for name in ("id", "kept_id")]
        assert jaccard(*sets) == pytest.approx(member["jaccard"], abs=0)
        if member["reason"]:
            assert member["jaccard"] >= 0.8
            assert len(texts[member["kept_id"]]) >= len(texts[member["id"]])
            detail = dropped[member["id"]]["detail"]
            assert member["kept_url"] in detail and f"{member['jaccard']:.3f}" in detail
    assert all(len(ids) > 1 for ids in members.values())
    assert manifest.outcome.facts["clusters"] == len(members)
    assert manifest.outcome.seen == 3000 == manifest.outcome.kept + sum(manifest.outcome.reasons.values())


def test_the_largest_clusters_are_found_with_their_texts(
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
        assert cluster.kept and all(member.kept_id == member.id for member in cluster.kept)
        assert all(member.excerpt == texts[member.id][:300] for member in cluster.members)


def test_other_shards_and_workers_keep_the_same(
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
    fates = [
        {(r["id"], r["reason"], r["detail"]) for r in rejected_of(*done)} for done in ((root, manifest), (other, cut))
    ]
    assert fates[0] == fates[1]


@pytest.mark.parametrize("size", [100, 1000])
def test_articles_with_known_pairs(real_data: Path, tmp_path: Path, size: int) -> None:
    folder = real_data / "neardup"
    articles = list(read_jsonl(folder / f"minhash_articles_{size}.jsonl"))
    pairs = [line.split() for line in (folder / f"minhash_articles_{size}.truth.tsv").read_text().splitlines()[1:]]
    # These are planted at character-5-gram similarity >= 0.5: at a low threshold of words all must be found.
    settings = DedupSettings(threshold=0.5, bands=32, rows=4)
    root, manifest = run(tmp_path, [row(a["text"], document_id=a["id"]) for a in articles], settings)
    clusters = defaultdict(set)
    for member in audit(root, manifest, "clusters/"):
        clusters[member["cluster"]].add(member["id"])
    assert sorted(map(sorted, clusters.values())) == sorted(map(sorted, pairs))


def test_exact_copies_short_texts_and_empty_ones(tmp_path: Path) -> None:
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
def test_a_chain(tmp_path: Path, policy: Any, kept: list[str]) -> None:
    """a ~ b ~ c, but a and c are too different: greedy keeps both ends, connected only the best."""
    words = TEXT.split()
    texts = {key: " ".join(words[start : start + 91]) for key, start in (("a", 0), ("b", 4), ("c", 8))}
    settings = DedupSettings(policy=policy, threshold=0.9, bands=64, rows=2)
    rows = [row(text, document_id=key) for key, text in texts.items()]
    root, manifest = run(tmp_path, rows, settings)
    assert [r["id"] for r in rows_of(root, manifest)] == kept
    assert {m["cluster"] for m in audit(root, manifest, "clusters/")} == {"a"}
    details = {r["id"]: r["detail"] for r in rejected_of(root, manifest)}
    assert details["b"] == f"much like {rows[0]['url']} (Jaccard 0.912)"
    if policy == "connected":
        assert details["c"] == f"much like {rows[0]['url']} (in one cluster, not compared)"


def test_no_documents_and_empty_shards(tmp_path: Path) -> None:
    root, manifest = run(tmp_path, [])
    assert (manifest.outcome.seen, manifest.outcome.kept) == (0, 0)
    assert rows_of(root, manifest) == []


def test_the_threshold_is_inclusive(tmp_path: Path) -> None:
    """8 common 1-grams of 10 are 0.8 exactly."""
    rows = [row("a1 a2 a3 a4 a5 a6 a7 a8 b1", document_id="x"), row("a1 a2 a3 a4 a5 a6 a7 a8 c1", document_id="y")]
    for threshold, kept in ((0.8, ["x"]), (0.800001, ["x", "y"])):
        settings = DedupSettings(ngram=1, threshold=threshold, bands=64, rows=1)
        root, manifest = run(tmp_path / str(threshold), rows, settings)
        assert [r["id"] for r in rows_of(root, manifest)] == kept


def test_only_what_the_manifest_names_is_left(planted_run: tuple[Folder, Manifest]) -> None:
    root, manifest = planted_run
    named = {record.name for record in manifest.outcome.files}
    assert set((root / "dedup").files()) == named | {"_manifest.json"}


@given(st.integers(0, 12), st.integers(1, 12))
def test_a_bucket_gives_each_pair_with_a_pivot_once(size: int, pivots: int) -> None:
    pairs = list(pair_up(range(size), pivots))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) >= {(a, b) for b in range(size) for a in range(min(b, pivots))}
    assert all(a < b for a, b in pairs)


GRAPHS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] < e[1]), max_size=20, unique=True
).map(lambda ends: [Edge(a, b, 0.8 + (a * 7 + b * 3) % 20 / 100) for a, b in ends])


@given(GRAPHS)
@hypothesis_settings(deadline=None)
def test_keepers(edges: list[Edge]) -> None:
    components = components_of(10, edges)
    weight = {(e.better, e.worse): e.jaccard for e in edges}
    greedy = keepers(10, edges, components, "greedy")
    for node, (chosen, similarity) in enumerate(greedy):
        assert greedy[chosen][0] == chosen
        if chosen == node:  # no kept neighbour of better rank
            assert not any(greedy[e.better][0] == e.better for e in edges if e.worse == node)
        else:
            assert weight[chosen, node] == similarity
    connected = keepers(10, edges, components, "connected")
    assert [chosen for chosen, _ in connected] == [components.index(c) for c in components]
    assert all(components[a] == components[b] for a, b in weight)
