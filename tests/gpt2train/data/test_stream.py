"""Many token files read as one: the same tokens, samples and errors as from a single pair."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.data.indexed import IndexedDataset, shard_name
from gpt2train.data.samples import Samples
from gpt2train.data.sharded_dataset import open_tokens, shard_prefixes
from gpt2train.data.token_arrays import ConcatenatedArrays
from gpt2train.errors import RunError, UserError
from tests.gpt2train.data.token_files import sequences, write_documents

DOCUMENTS = [[number] * (number % 7 + 1) for number in range(60)]


def shards(folder: Path, cuts: list[int]) -> Path:
    bounds = [0, *cuts, len(DOCUMENTS)]
    for number in range(len(bounds) - 1):
        name = shard_name("tokens", number, len(bounds) - 1)
        write_documents(folder / name, DOCUMENTS[bounds[number] : bounds[number + 1]])
    return folder / "tokens"


def test_many_files_are_one_stream(tmp_path: Path) -> None:
    one = IndexedDataset(write_documents(tmp_path / "one", DOCUMENTS))
    many = open_tokens(shards(tmp_path, [1, 20, 20, 41]))  # one of them is empty
    assert sequences(many) == DOCUMENTS
    assert many.lengths.tolist() == one.lengths.tolist()
    assert many.documents.tolist() == one.documents.tolist()
    assert many.tokens[:].tolist() == one.tokens.tolist()
    ours, theirs = (Samples(tmp_path / name, 4, 99, seed=3) for name in ("tokens", "one"))
    assert np.array_equal(ours.read(range(100))[0], theirs.read(range(100))[0])
    ours.check_vocabulary(1, 3)


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), data=st.data())
def test_joined_arrays_are_indexed_as_one(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes), dtype=np.uint16)
    joined = ConcatenatedArrays(np.split(whole, np.cumsum(sizes)[:-1]))
    start, stop = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 30))
    assert joined[start:stop].tolist() == whole[start:stop].tolist()
    if len(whole):
        places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6))
        assert joined[np.array(places, dtype=np.int64)].tolist() == places
    for beyond in (len(whole), -1):
        with pytest.raises(IndexError):
            joined[np.array([beyond])]


def test_shards_that_are_no_whole_set_are_refused_by_name(tmp_path: Path) -> None:
    for prefix in (tmp_path / "tokens", tmp_path / "no/folder/tokens"):
        with pytest.raises(UserError, match="is missing"):
            open_tokens(prefix)
    prefix = shards(tmp_path, [20, 40])
    assert len(shard_prefixes(prefix)) == 3
    write_documents(tmp_path / "tokens-00001-of-00003", [[1]], "<i4")
    with pytest.raises(RunError, match="int32, uint16"):
        open_tokens(prefix)
    (tmp_path / "tokens-00001-of-00003.idx").unlink()
    with pytest.raises(RunError, match=r"tokens-00001-of-00003\.idx is missing, one of 3"):
        open_tokens(prefix)
    with pytest.raises(UserError, match=r"shards of 2 datasets"):
        open_tokens(shards(tmp_path, [20]))
