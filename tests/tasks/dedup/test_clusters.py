"""Clusters: bands of a stated recall, pairs of a bucket, whole components, and the documents that stay."""

import csv
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpt2train.store.folder import Folder
from tasks.core.shards import read_table, write_numbers
from tasks.dedup.bands import MAX_PERMUTATIONS, recall_at, with_bands
from tasks.dedup.clusters import Edges, choose_survivors, components_of
from tasks.dedup.components import PAIRS, edge_parts, partition_edges
from tasks.dedup.document_index import Group
from tasks.dedup.exact import EXACT
from tasks.dedup.lsh import pair_up_all, pair_with_pivots
from tasks.dedup.minhash import band_name, sketch_texts
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import read_jsonl, rejected_of, row, rows_of
from tests.tasks.dedup.dedup_helpers import audit, run


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
    components = components_of(10, [(better, worse)])
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


# Few documents of few shards, with gaps in the rows.
NUMBERS = st.builds(lambda shard, at: shard << 32 | at, st.integers(0, 2), st.sampled_from([0, 1, 2, 7, 1000]))
ENDS = st.tuples(NUMBERS, NUMBERS).filter(lambda ends: ends[0] != ends[1])


@given(
    st.lists(st.lists(ENDS, max_size=8), min_size=1, max_size=2),
    st.lists(st.lists(st.tuples(ENDS, st.booleans()), max_size=8), min_size=1, max_size=2),
    st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_parts_have_whole_components(exact: list[Any], pairs: list[Any], parts: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Folder(temporary)
        copied, near = [], []
        for number, ends in enumerate(exact):
            table = pa.table({"dropped": [a for a, _ in ends], "kept": [b for _, b in ends]}, schema=EXACT)
            copied.append(write_numbers(folder, f"exact/{number}.parquet", table).name)
        for number, found in enumerate(pairs):
            rows = [{"first": a, "second": b, "jaccard": 0.5, "accepted": yes} for (a, b), yes in found]
            near.append(write_numbers(folder, f"pairs/{number}.parquet", pa.Table.from_pylist(rows, PAIRS)).name)
        group = Group(folder, ("a", "b", "c"), 0)
        names = [record.name for record in partition_edges(folder, "x", parts, [group], copied, near).outputs]
        written = [[tuple(r.values())[:2] for r in read_table(folder, name).to_pylist()] for name in names]
    assert len(names) == 2 * parts
    accepted = [ends for found in pairs for ends, yes in found if yes]
    for kind, given_edges in enumerate(([ends for some in exact for ends in some], accepted)):
        divided = written[kind * parts : (kind + 1) * parts]
        assert sorted(edge for some in divided for edge in some) == sorted(given_edges)
        for some in divided:  # in the order of the files
            positions = iter(given_edges)
            assert all(any(edge == other for other in positions) for edge in some)
    every = [edge for some in written for edge in some]
    if every:
        ids = {number: at for at, number in enumerate(sorted({end for edge in every for end in edge}))}
        one, other = np.array([[ids[a], ids[b]] for a, b in every]).T
        components = components_of(len(ids), [(one, other)])
        owners: dict[int, set[int]] = {}
        for file, some in enumerate(written):
            for a, _ in some:
                owners.setdefault(int(components[ids[a]]), set()).add(file % parts)
        assert all(len(owner) == 1 for owner in owners.values())


@pytest.mark.parametrize("policy", ["greedy", "connected", "containment"])
def test_clusters_in_parts_are_those_of_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    words = [f"word{number}" for number in range(120)]
    texts = []
    for cluster in range(9):
        base = [f"{word}-{cluster}" for word in words]
        texts += [" ".join(base)] * (1 + cluster % 3)
        texts += [" ".join([*base[:at], "other", *base[at + 1 :]]) for at in range(cluster % 4)]
    rows = [row(text, f"http://a.test/{number}") for number, text in enumerate(texts)]
    chosen = DedupSettings.model_validate({"policy": policy})
    expected = run(tmp_path / "one", rows, chosen, 10)
    monkeypatch.setattr("tasks.dedup.components.MAX_EDGES", 7)
    assert edge_parts(6) == 1 and edge_parts(7) == 2
    done = run(tmp_path / "parts", rows, chosen, 10)
    parts = [record.name for record in done[1].outcome.audit if record.name.startswith("clusters/")]
    assert len(parts) >= 3 and parts == sorted(parts)
    assert {record.name.partition("/")[0] for record in done[1].outcome.files} == {
        record.name.partition("/")[0] for record in expected[1].outcome.files
    }
    members = [sorted(audit(*result, "clusters/"), key=lambda member: member["number"]) for result in (done, expected)]
    assert members[0] == members[1] and len(members[0]) > 15
    assert audit(*done, "lost/") == audit(*expected, "lost/")
    assert rejected_of(*done) == rejected_of(*expected) and done[1].outcome.facts == expected[1].outcome.facts
    outputs = [[record.sha256 for record in result[1].outputs] for result in (done, expected)]
    assert outputs[0] == outputs[1]


PAGE = [f"word{number:03d}" for number in range(300)]


def chosen(**given: float) -> tuple[int, int]:
    settings = with_bands(DedupSettings.model_validate(given))
    return settings.num_bands, settings.rows_per_band


@given(st.floats(0.05, 1), st.floats(0.5, 0.999))
def test_the_stated_recall_is_reached_with_the_most_rows(threshold: float, recall: float) -> None:
    bands, rows = chosen(threshold=threshold, recall=recall)
    if bands * rows <= MAX_PERMUTATIONS and (bands, rows) != (256, 1):
        assert recall_at(threshold, bands, rows) >= recall - 1e-9
        assert bands == 1 or recall_at(threshold, bands - 1, rows) < recall
    more = rows + 1
    assert (
        rows == 64 or recall_at(threshold, max(MAX_PERMUTATIONS // more, 1), more) < recall or more > MAX_PERMUTATIONS
    )


def test_choices_at_usual_thresholds() -> None:
    """16 bands of 8 at the default threshold: sketches of earlier outputs remain comparable."""
    pairs = [chosen(threshold=threshold) for threshold in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert pairs == [(22, 3), (21, 4), (16, 5), (16, 8), (9, 12)]
    assert chosen() == (16, 8)
    assert chosen(threshold=1e-300)[1] == 1


def test_given_numbers_are_kept_and_the_other_is_derived() -> None:
    assert chosen(threshold=0.7, num_bands=16, rows_per_band=8) == (16, 8)
    bands, rows = chosen(threshold=0.7, rows_per_band=8)
    assert rows == 8 and recall_at(0.7, bands, rows) >= 0.94 > recall_at(0.7, bands - 1, rows)
    bands, rows = chosen(threshold=0.7, num_bands=20)
    assert (bands, rows) == (20, 5)
    megatron = with_bands(DedupSettings(parity="megatron"))
    assert (megatron.num_bands, megatron.rows_per_band) == (10, 10)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_planted_pairs_at_each_threshold_are_candidates(real_data: Path, threshold: float) -> None:
    """Recall of the pairs up to 0.05 above the threshold, over eight seeds; all pairs above do better."""
    documents = list(read_jsonl(real_data / "neardup/planted_dev/docs.jsonl.gz"))
    places = {document["id"]: place for place, document in enumerate(documents)}
    with gzip.open(real_data / "neardup/planted_dev/allpairs_w5_ge0.3.tsv.gz", "rt") as file:
        pairs = [row for row in csv.DictReader(file, delimiter="\t") if threshold <= float(row["jaccard"]) < 1]
    near = [pair for pair in pairs if float(pair["jaccard"]) < threshold + 0.05]
    assert len(near) >= 10
    ends = np.array([[places[pair["id_a"]], places[pair["id_b"]]] for pair in near])
    subset = sorted(set(ends.ravel()))
    texts = pa.array([documents[place]["text"] for place in subset], pa.large_string())
    one, other = np.searchsorted(subset, ends).T
    shares = []
    for seed in range(1, 9):
        settings = with_bands(DedupSettings(threshold=threshold, seed=seed))
        sketch = sketch_texts(texts, settings)
        bands = np.stack([sketch[band_name(band)].to_numpy(zero_copy_only=False) for band in range(settings.num_bands)])
        shares.append((bands[:, one] == bands[:, other]).any(axis=0).mean())
    assert np.mean(shares) >= 0.94 - 0.02


def test_the_manifest_has_the_numbers_and_not_the_recall(tmp_path: Path) -> None:
    rows = [row(" ".join(PAGE), document_id="a"), row(" ".join([*PAGE[:-1], "other"]), document_id="b")]
    root, manifest = run(tmp_path, rows, DedupSettings(threshold=0.7))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a"]
    assert (manifest.parameters["num_bands"], manifest.parameters["rows_per_band"]) == (16, 5)
    assert "recall" not in manifest.parameters
    assert "band_15" in audit(root, manifest, "sketch/")[0]


def test_a_comparison_takes_the_bands_of_the_earlier_output(tmp_path: Path) -> None:
    old, manifest = run(tmp_path / "old", [row(" ".join(PAGE), document_id="a")])
    new = [row(" ".join([*PAGE[:-1], "other"]), document_id="b")]
    _, again = run(tmp_path / "new", new, DedupSettings(threshold=0.6, previous=(f"{old.url}/dedup",)))
    assert again.parameters["num_bands"] == manifest.parameters["num_bands"] == 16
    assert again.outcome.kept == 0
