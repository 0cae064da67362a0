"""Duplicates, and those of a cluster that stay: rules on a few documents, bands, components, recall."""

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpt2train.data.text_units import units_of
from gpt2train.store.folder import Folder
from tasks.core.shards import read_table, write_numbers
from tasks.dedup.bands import MAX_PERMUTATIONS, with_bands
from tasks.dedup.clusters import Edges, choose_survivors, components_of
from tasks.dedup.components import PAIRS, edge_parts, partition_edges
from tasks.dedup.document_index import Group
from tasks.dedup.exact import EXACT
from tasks.dedup.lsh import pair_up_all, pair_with_pivots
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import rejected_of, row, rows_of, texts_of
from tests.tasks.dedup.dedup_helpers import audit, run

TEXT = " ".join(f"word{i:02d}" for i in range(100))


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
    rejected = {r["id"]: r for r in rejected_of(root, manifest)}
    reasons = {"b": "exact_duplicate", "f": "exact_duplicate", "h": "near_duplicate", "i": "near_duplicate"}
    assert {key: found["reason"] for key, found in rejected.items()} == reasons
    assert rejected["b"]["detail"] == f"same text as {rows[1]['url']} (Jaccard 1.000)"
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


def test_the_threshold_is_inclusive(tmp_path: Path) -> None:
    """8 common 1-grams of 10 are 0.8 exactly."""
    rows = [row("a1 a2 a3 a4 a5 a6 a7 a8 b1", document_id="x"), row("a1 a2 a3 a4 a5 a6 a7 a8 c1", document_id="y")]
    for threshold, kept in ((0.8, ["x"]), (0.800001, ["x", "y"])):
        settings = DedupSettings(ngram=1, threshold=threshold, num_bands=64, rows_per_band=1)
        root, manifest = run(tmp_path / str(threshold), rows, settings)
        assert [r["id"] for r in rows_of(root, manifest)] == kept


def test_boilerplate_in_a_hot_bucket_gives_linear_pairs(tmp_path: Path) -> None:
    """3,000 pages that differ in one word of two hundred: one stays, and the pairs are linear in their number."""
    words = " ".join(f"word{number:03d}" for number in range(200))
    rows = [row(f"{words} page{number:05d}", document_id=f"{number:05d}") for number in range(3000)]
    root, manifest = run(tmp_path, rows, DedupSettings(bucket_pivots=8))
    assert [r["id"] for r in rows_of(root, manifest)] == ["00000"]
    assert manifest.outcome.facts["hot_buckets"] == 16
    assert manifest.outcome.facts["candidate_pairs"] <= 2 * 8 * 3000  # not every page is in each of the buckets


def test_parity_sets_other_defaults_and_includes_the_last_shingle_unlike_megatron(tmp_path: Path) -> None:
    """Five letters are one shingle: Megatron's `range(0, len - 5)` had none."""
    settings = DedupSettings(parity="megatron", rows_per_band=9)
    given = settings.shingle, settings.num_bands, settings.rows_per_band, settings.threshold
    assert given == ("characters", 10, 9, 0.7) and DedupSettings(**settings.model_dump()) == settings
    rows = [row("abcde", document_id="a"), row("abcde", document_id="b"), row("abcdf", document_id="c")]
    root, manifest = run(tmp_path, rows, DedupSettings(parity="megatron"))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a", "c"]
    sketch = audit(root, manifest, "sketch/")
    assert all(r["band_00"] is not None for r in sketch) and sketch[0]["band_00"] != sketch[2]["band_00"]


UNITS = 300  # of a document
DOCUMENTS = 150


def planted_recall(texts: Sequence[str], join: str, edits: int, folder: Path) -> float:
    """Share of planted copies with up to `edits` replaced units that are found at the default settings."""
    chance = random.Random(0)
    units = [unit for text in texts for unit in units_of(text)]
    assert len(units) >= DOCUMENTS * UNITS
    rows, pairs = [], set()
    for number in range(DOCUMENTS):
        original = units[number * UNITS : (number + 1) * UNITS]
        copy = original.copy()
        for place in chance.sample(range(UNITS), 1 + number % edits):
            copy[place] = chance.choice(units)
        ids = (f"{number:03d}a", f"{number:03d}b")
        rows += [row(join.join(text), document_id=name) for text, name in zip((original, copy), ids, strict=True)]
        pairs.add(frozenset(ids))
    done = run(folder, rows)
    found = {frozenset((p["first_id"], p["second_id"])) for p in audit(*done, "pairs/") if p["accepted"]}
    found |= {frozenset((m["id"], m["kept_id"])) for m in audit(*done, "clusters/") if m["reason"] == "exact_duplicate"}
    assert not found - pairs
    return len(found) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "least"),
    [(5, 0.97), (9, 0.7)],  # the most edits leave a Jaccard similarity of about 0.84, and of 0.74, below the threshold
)
def test_chinese_duplicates_have_the_recall_of_english_ones(
    real_data: Path, tmp_path: Path, edits: int, least: float
) -> None:
    corpus = real_data / "eval/zh/corpus"
    if not corpus.is_dir():
        pytest.skip(f"no Chinese corpus at {corpus}")
    novel = (corpus / "hongloumeng.txt").read_text(encoding="utf-8")
    chinese = planted_recall([novel], "", edits, tmp_path / "zh")
    speeches = texts_of(real_data / "text" / "speeches_dev.jsonl.gz", 1000)
    english = planted_recall(speeches, " ", edits, tmp_path / "en")
    assert min(chinese, english) >= least
    assert abs(chinese - english) <= 0.02, (chinese, english)


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


def recall_at(similarity: float, bands: int, rows: int) -> float:
    """Probability that a pair of this Jaccard similarity has a common band."""
    return 1.0 if similarity >= 1 else -math.expm1(bands * math.log1p(-(similarity**rows)))


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


def test_choices_at_usual_thresholds_and_with_given_numbers() -> None:
    """16 bands of 8 at the default threshold: sketches of earlier outputs remain comparable."""
    pairs = [chosen(threshold=threshold) for threshold in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert pairs == [(22, 3), (21, 4), (16, 5), (16, 8), (9, 12)]
    assert chosen() == (16, 8) == chosen(threshold=0.7, num_bands=16, rows_per_band=8)
    assert chosen(threshold=1e-300)[1] == 1
    bands, rows = chosen(threshold=0.7, rows_per_band=8)
    assert rows == 8 and recall_at(0.7, bands, rows) >= 0.94 > recall_at(0.7, bands - 1, rows)
    assert chosen(threshold=0.7, num_bands=20) == (20, 5)
    megatron = with_bands(DedupSettings(parity="megatron"))
    assert (megatron.num_bands, megatron.rows_per_band) == (10, 10)


def test_the_manifest_has_the_numbers_which_a_comparison_takes(tmp_path: Path) -> None:
    page, other = row(" ".join(PAGE), document_id="a"), row(" ".join([*PAGE[:-1], "other"]), document_id="b")
    root, manifest = run(tmp_path / "both", [page, other], DedupSettings(threshold=0.7))
    assert [r["id"] for r in rows_of(root, manifest)] == ["a"]
    assert (manifest.parameters["num_bands"], manifest.parameters["rows_per_band"]) == (16, 5)
    assert "recall" not in manifest.parameters and "band_15" in audit(root, manifest, "sketch/")[0]
    old, manifest = run(tmp_path / "old", [page])
    _, again = run(tmp_path / "new", [other], DedupSettings(threshold=0.6, previous=(f"{old.url}/dedup",)))
    assert again.parameters["num_bands"] == manifest.parameters["num_bands"] == 16
    assert again.outcome.kept == 0
