"""Parts of the duplicates: whole components, every accepted edge once, and the result of one part."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.store.folder import Folder
from tasks.core.shards import read_table, write_numbers
from tasks.dedup.clusters import components_of
from tasks.dedup.components import PAIRS, edge_parts, partition_edges
from tasks.dedup.document_index import Group
from tasks.dedup.exact import EXACT
from tasks.dedup.settings import DedupSettings
from tests.tasks.corpus import rejected_of, row
from tests.tasks.dedup.dedup_helpers import audit, run

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
