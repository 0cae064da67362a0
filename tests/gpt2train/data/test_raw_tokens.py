"""Raw token files of nanoGPT and llm.c, written here as those programs write them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt2train.data.identity import tokens_identity
from gpt2train.data.legacy_formats import convert
from gpt2train.data.raw_tokens import with_end
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import RunError, UserError
from tests.gpt2train.data.token_files import sequences, write_documents

END = 50256


def nanogpt(path: Path, documents: list[list[int]], end: int = END) -> str:
    """data/openwebtext/prepare.py: each document is ended."""
    np.array([token for ids in documents for token in (*ids, end)], dtype=np.uint16).tofile(path)
    return str(path)


def llmc(path: Path, documents: list[list[int]], end: int = END, magic: int = 20240520, version: int = 1) -> str:
    """dev/data/data_common.py: each document is begun."""
    tokens = np.array([token for ids in documents for token in (end, *ids)], dtype="<u2" if version == 1 else "<u4")
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return str(path)


DOCUMENTS = st.lists(st.lists(st.integers(0, 999), max_size=5), min_size=1, max_size=6)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS, split=st.booleans())
def test_documents_are_those_of_a_pair_with_the_same_tokens(
    tmp_path: Path, documents: list[list[int]], split: bool
) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    for name, made in (
        ("n", nanogpt(tmp_path / "n.bin", documents)),
        ("c", llmc(tmp_path / "c.bin", documents)),
        ("o", f"{nanogpt(tmp_path / 'o.bin', documents, 7_000)}#7000"),
        ("l", llmc(tmp_path / "l.bin", documents, 128_000, 20240801, 7)),
    ):
        end = {"o": 7_000, "l": 128_000}.get(name, END)
        ended = [[end, *ids] if name in "cl" else [*ids, end] for ids in documents]
        weights = (2, 1, 1) if split else None
        raw = open_tokens(made, weights)
        pair = open_tokens(write_documents(tmp_path / f"pair-{name}", ended, "<i4"), weights)
        assert sequences(raw) == sequences(pair)
        assert tokens_identity(raw) == tokens_identity(pair)
    converted = convert(tmp_path / "c.bin", tmp_path / "converted")
    assert tokens_identity(converted) == tokens_identity(open_tokens(tmp_path / "pair-c"))


def test_a_file_without_an_end_is_one_document_and_an_unended_one_is_kept(tmp_path: Path) -> None:
    np.array([1, 2, END, 3], dtype=np.uint16).tofile(tmp_path / "x.bin")
    assert sequences(open_tokens(tmp_path / "x.bin")) == [[1, 2, END], [3]]
    assert sequences(open_tokens(f"{tmp_path}/x.bin#9")) == [[1, 2, END, 3]]
    (tmp_path / "empty.bin").write_bytes(b"")
    assert len(open_tokens(tmp_path / "empty.bin")) == 0


def test_a_pattern_names_the_shards_in_their_order(tmp_path: Path) -> None:
    for number in (2, 1):
        llmc(tmp_path / f"fineweb_train_{number:06d}.bin", [[number]] * number)
    pattern = str(tmp_path / "fineweb_train_*.bin")
    assert with_end(pattern, END) == pattern and with_end(pattern, 2) == f"{pattern}#2"
    assert len(open_tokens(f"{pattern}#2")) == 4
    assert sequences(open_tokens(pattern)) == [[END, 1], [END, 2], [END, 2]]


def test_a_file_of_a_pair_stands_for_the_pair(tmp_path: Path) -> None:
    for name in ("x", "y.bin"):  # a prefix may have the ending itself
        write_documents(tmp_path / name, [[1, 2]])
        for given_name in (name, f"{name}.bin", f"{name}.idx"):
            assert len(open_tokens(tmp_path / given_name)) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    path = Path(llmc(tmp_path / "x.bin", [[1, 2, 3]]))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(RunError, match=r"x\.bin is truncated or damaged: 1,030 bytes, 1,032 by its header"):
        open_tokens(path)
    llmc(path, [[1]], version=3)
    with pytest.raises(UserError, match=r"has version 3 of llm\.c's format"):
        open_tokens(path)
    path.write_bytes(b"abc")
    with pytest.raises(UserError, match="no tokens of two bytes"):
        open_tokens(path)
    with pytest.raises(UserError, match=r"z\.bin does not exist"):
        open_tokens(tmp_path / "z.bin")
    with pytest.raises(UserError, match=r"x\.idx is missing; .* have their ending in the name: \S*x\.bin"):
        open_tokens(tmp_path / "x")
