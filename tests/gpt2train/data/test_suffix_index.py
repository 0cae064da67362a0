"""Suffix arrays of tokens: build, resume, damage, and searches against a plain scan."""

from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data import suffix_search
from gpt2train.data.indexed import TokenDataset
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.suffix_index import MANIFEST, build_index, index_root
from gpt2train.data.suffix_search import SuffixIndex, find_spans
from gpt2train.errors import RunError, UserError
from tests.gpt2train.indexed_writer import write_documents

pytest.importorskip("pydivsufsort", reason="needs the extra trace")


def write_tokens(prefix: Path, documents: list[list[int]], dtype: str = "<u2") -> TokenDataset:
    return open_tokens(write_documents(prefix, documents, dtype))


def scan(documents: list[list[int]], text: list[int], least: int, end: int) -> list[tuple[int, int, int]]:
    def same(document: list[int], place: int, start: int) -> int:
        pairs = zip(text[start:], document[place:], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1] != end, pairs))

    places = [(document, place) for document in documents for place in range(len(document))]
    lengths = [max((same(*one, start) for one in places), default=0) for start in range(len(text))]
    found = []
    for start, length in enumerate(lengths):
        if length >= least and (not start or start + length > start - 1 + lengths[start - 1]):
            span = text[start : start + length]
            count = sum(document[place : place + length] == span for document, place in places)
            found.append((start, start + length, count))
    return found


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_spans_and_counts_equal_a_plain_scan(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two- to four-byte ids, empty documents, documents without an end token, blocks of any size."""
    base = data.draw(st.sampled_from([0, 65_530, 65_534, 2**24 - 3]))
    dtype = "<u2" if base < 65_530 else "<i4"
    token = st.integers(base, base + data.draw(st.integers(1, 4)))
    documents = data.draw(st.lists(st.lists(token, max_size=30), min_size=1, max_size=12))
    text, least = data.draw(st.lists(token, max_size=40)), data.draw(st.integers(1, 4))
    folder = tmp_path_factory.mktemp("tokens")
    dataset = write_tokens(folder / "tokens", documents, dtype)
    build_index(dataset, folder / "index", block_tokens=data.draw(st.sampled_from([1, 16, 10_000])))
    index, end = SuffixIndex(dataset, folder / "index"), base + 1
    limit = data.draw(st.sampled_from([1, 3, 1000]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_search, "SHORT", data.draw(st.sampled_from([1, 3, suffix_search.SHORT])))
        patch.setattr(suffix_search, "COMPARED", data.draw(st.sampled_from([1, suffix_search.COMPARED])))
        spans = find_spans([index], text, least, breaks=frozenset((end,)), limit=limit)
    assert [(span.start, span.end, span.count) for span in spans] == scan(documents, text, least, end)
    flat = [token for document in documents for token in document]
    for span in spans:
        assert len(set(span.positions[0])) == min(span.count, limit)
        assert all(flat[place : place + span.end - span.start] == text[span.start : span.end]
                   for place in span.positions[0])  # fmt: skip


def test_an_index_belongs_to_the_content_of_tokens(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4, 5, 6, 7], [8, 9]] * 20
    dataset = write_tokens(tmp_path / "tokens", documents)
    folder = build_index(dataset, tmp_path / "index")
    write_tokens(tmp_path / "moved", documents)
    assert SuffixIndex(open_tokens(tmp_path / "moved"), tmp_path / "index").folder == folder
    with pytest.raises(UserError, match="gpt2train data index"):
        SuffixIndex(write_tokens(tmp_path / "other", [*documents, [1]]), tmp_path / "index")
    with pytest.raises(RunError, match="token 1 of the file is negative"):
        build_index(write_tokens(tmp_path / "negative", [[1, -2, 3]], "<i4"), tmp_path / "index")
    part = open_tokens(tmp_path / "tokens", (2, 1, 0))
    assert build_index(part, tmp_path / "index") != folder
    assert SuffixIndex(part, tmp_path / "index").tokens < len(dataset.tokens)
    assert index_root("out/tokens/train/tokens") == Path("out/token_index")
    assert index_root("data/mine") == Path("data/token_index")


def test_an_interrupted_build_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    dataset = write_tokens(tmp_path / "tokens", rng.integers(0, 50, (60, 40)).tolist())
    folder = build_index(dataset, tmp_path / "index", block_tokens=400)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    (folder / MANIFEST).unlink()  # killed after the second block, which it had not recorded
    for name in ("block-00002.json", "block-00003.suffixes"):
        (folder / name).unlink()
    (folder / ".tmp-123").write_bytes(b"half")
    with pytest.raises(UserError):
        SuffixIndex(dataset, tmp_path / "index")
    build_index(dataset, tmp_path / "index", block_tokens=400, workers=3)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    redone = {name for name, stamp in stamps.items() if (folder / name).stat().st_mtime_ns != stamp}
    assert redone == {MANIFEST, *(f"block-0000{n}.{kind}" for n in (2, 3) for kind in ("json", "keys", "suffixes"))}
    (folder / "block-00001.suffixes").write_bytes(b"short")
    with pytest.raises(RunError, match=r"block-00001\.suffixes is missing or damaged"):
        SuffixIndex(dataset, tmp_path / "index")


def test_a_document_that_is_copied_as_a_whole_is_found_soon(tmp_path: Path) -> None:
    """Its 30,000 tokens took a quarter of a minute where each start was compared to the end."""
    copied = np.random.default_rng(0).integers(0, 50_000, 30_000).tolist()
    dataset = write_tokens(tmp_path / "tokens", [[1, *copied, 2], copied[15_000:]], "<u2")
    build_index(dataset, tmp_path / "index")
    [span] = find_spans([SuffixIndex(dataset, tmp_path / "index")], [3, *copied, 3], 20)
    assert (span.start, span.end, span.count) == (1, 30_001, 1)


def test_an_index_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    dataset = write_tokens(tmp_path / "tokens", rng.integers(0, 50_000, (300, 700)).tolist())
    folder = build_index(dataset, tmp_path / "index")
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size / len(dataset.tokens) < 4.1
    [span] = find_spans([SuffixIndex(dataset, tmp_path / "index")], dataset.tokens[1000:1020].tolist(), 20)
    assert (span.counts, span.positions) == ((1,), ((1000,),))
