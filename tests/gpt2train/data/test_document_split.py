"""Split of token files by documents: Megatron-LM's rule, and a part of a file as if it were a file of its own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpt2train.checkpoint.resume import stored_corpora, validation_identity
from gpt2train.config import Corpus, DataSettings, RunConfig, to_toml
from gpt2train.config.data import split_weights
from gpt2train.data.document_split import PARTS, Part, split_documents
from gpt2train.data.indexed import IndexedDataset, shard_name, write_index
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from tests.gpt2train.indexed_writer import sequences, write_documents
from tests.gpt2train.jobs import VOCAB, curve, make

SPLIT = "700,200,100"
DATA: dict[str, Any] = {"valid": None, "split": SPLIT}


def megatron_split(split: str, size: int) -> list[int]:
    """The bounds by `get_train_valid_test_split_` (Megatron-LM, megatron/data/dataset_utils.py of 2023)."""
    splits = [*map(float, split.split(",")), 0.0, 0.0][:3]
    index = [0]
    for part in splits:
        index.append(index[-1] + round(part / sum(splits) * float(size)))
    excess = index[-1] - size
    return [0, *(bound - excess for bound in index[1:])]


@given(st.integers(0, 100_000), st.lists(st.integers(1, 999), min_size=1, max_size=3))
@example(2456, [700, 200, 100])  # of Megatron-LM's tutorial
@example(10, [969, 30, 1])
def test_the_bounds_equal_those_of_megatron(documents: int, numbers: list[int]) -> None:
    split = ",".join(map(str, numbers))
    theirs = megatron_split(split, documents)
    if theirs[1] >= 0:
        parts = split_documents(documents, split_weights(split))
        assert [parts[0].start, *(part.stop for part in parts)] == theirs
    assert documents != 2456 or theirs == [0, 1719, 2210, 2456]


@given(st.integers(0, 100_000), st.lists(st.floats(0, 1e6), min_size=3, max_size=3).filter(any))
def test_the_parts_are_all_documents_once_and_in_order(documents: int, numbers: list[float]) -> None:
    parts = split_documents(documents, numbers)
    assert [number for part in parts for number in part] == list(range(documents))
    for part, weight in zip(parts, numbers, strict=True):
        assert abs(len(part) - weight / math.fsum(numbers) * documents) <= 2


def test_a_wrong_split_is_refused_and_an_unset_one_changes_no_file(tmp_path: Path) -> None:
    """Checkpoints and fingerprints of runs without one stay the same."""
    for split in ("", "a,b", "1,2,3,4", "-1,2", "nan", "0,1", "949;50;1"):
        with pytest.raises(UserError, match="split") as caught:
            build(DataSettings, {"train": "t", "split": split})
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="both name validation data"):
        build(DataSettings, {"train": "t", "valid": "v", "split": SPLIT})
    assert "split" not in DataSettings(train="t").model_dump()
    assert build(DataSettings, {"train": "t", "split": 1}).weights == (1.0, 0.0, 0.0)
    config = make(tmp_path, tmp_path / "run")
    assert "split = " not in to_toml(config)


DOCUMENTS = [[number % VOCAB] * (number % 7) for number in range(40)]  # some are empty


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_like_a_file_of_its_documents(tmp_path: Path, shards: int, part: Part) -> None:
    cuts = np.linspace(0, len(DOCUMENTS), shards + 1, dtype=int).tolist()
    for number in range(shards):
        write_documents(tmp_path / shard_name("t", number, shards), DOCUMENTS[cuts[number] : cuts[number + 1]])
    documents = split_documents(len(DOCUMENTS), [7, 2, 1])[PARTS.index(part)]
    alone = IndexedDataset(write_documents(tmp_path / "alone", DOCUMENTS[documents.start : documents.stop]))
    found = open_tokens(tmp_path / "t", [7, 2, 1], part)
    assert len(found) == len(alone) == len(documents)
    assert found.tokens.dtype == alone.dtype
    assert np.array_equal(found.lengths, alone.lengths) and np.array_equal(found.documents, alone.documents)
    assert len(found.tokens) == len(alone.tokens)
    everything = np.arange(len(alone.tokens))
    assert np.array_equal(found.tokens[everything], alone.tokens) and np.array_equal(found.tokens[:], alone.tokens)
    assert sequences(found) == sequences(alone)


def test_documents_of_several_sequences_stay_whole(tmp_path: Path) -> None:
    """As Megatron's tool writes them with --split-sentences."""
    write_documents(tmp_path / "t", [[1], [2, 2], [3], [4, 4], [5]])
    write_index(tmp_path / "t.idx", [1, 2, 1, 2, 1], "<u2", documents=[0, 2, 3, 5])
    found = open_tokens(tmp_path / "t", [2, 1], "train")
    assert found.tokens.tolist() == [1, 2, 2, 3] and found.documents.tolist() == [0, 2, 3]  # type: ignore[union-attr]


def split_run(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    return make(tokens, output, data=DATA, **changes)


def pair_run(tokens: Path, output: Path, folder: Path, **changes: Any) -> RunConfig:
    """The same run on files that were split before."""
    data, parts = IndexedDataset(tokens / "train"), split_documents(60, split_weights(SPLIT))
    for name, part in zip(PARTS, parts, strict=True):
        write_documents(folder / name, map(data.__getitem__, part))
    return make(tokens, output, data={"train": str(folder / "train"), "valid": str(folder / "valid")}, **changes)


def test_a_range_of_one_file_has_the_samples_of_a_file_of_its_own(tokens: Path, tmp_path: Path) -> None:
    view = open_tokens(tokens / "train", [7, 2, 1], "valid").tokens
    assert isinstance(view, np.memmap) and not view.flags.owndata
    one, other = split_run(tokens, tmp_path / "one"), pair_run(tokens, tmp_path / "other", tmp_path)
    assert stored_corpora(one) == stored_corpora(other) and validation_identity(one) == validation_identity(other)
    for part in ("train", "valid"):
        opened = [packed_data(config, part) for config in (one, other)]
        assert opened[0] is not None and opened[1] is not None
        left, right = (data.batch(range(data.per_epoch)) for data in opened if data)
        assert left.tokens.equal(right.tokens) and left.targets.equal(right.targets)


@pytest.mark.slow
def test_a_resumed_run_is_bit_equal_and_another_split_is_refused(
    tokens: Path, tmp_path: Path, alone: DistContext
) -> None:
    straight = split_run(tokens, tmp_path / "straight")
    train(straight, alone)
    train(split_run(tokens, tmp_path / "again", steps=10, schedule={"decay_steps": 20}), alone)
    again = split_run(tokens, tmp_path / "again", schedule={"decay_steps": 20})
    train(again, alone)
    assert curve(again.output) == curve(straight.output)
    before = newest_checkpoint(again.output)
    other = make(tokens, tmp_path / "again", data=DATA | {"split": "600,300,100"}, steps=30)
    with pytest.raises(UserError, match=r"other training data \(.*train had .* tokens there"):
        train(other, alone)
    assert newest_checkpoint(again.output) == before


def test_corpora_are_split_one_by_one_and_mixed_by_their_weights(tokens: Path, tmp_path: Path) -> None:
    corpora = [Corpus(prefix=str(tokens / name), weight=weight).model_dump() for name, weight in SHARES]
    config = make(tokens, tmp_path / "run", data=DATA | {"train": corpora, "split": "1,1"})
    data, valid = packed_data(config, "train"), packed_data(config, "valid")
    assert valid is not None
    for part, opened in (("train", data), ("valid", valid)):
        assert [samples.tokens for samples in opened.corpora] == [
            len(open_tokens(tokens / name, [1, 1, 0], part).tokens)  # type: ignore[arg-type]
            for name, _ in SHARES
        ]
        assert [share for _, _, share in opened.epochs(4)] == [
            4 * share / samples.per_epoch for (_, share), samples in zip(SHARES, opened.corpora, strict=True)
        ]
    # No document of the small corpus is left for validation.
    few = make(tokens, tmp_path / "run", data=DATA | {"train": corpora, "split": "20,1"})
    small = packed_data(few, "valid")
    assert small is not None
    assert [str(samples.prefix) for samples in small.corpora] == [str(tokens / "train")]


SHARES = (("train", 0.75), ("valid", 0.25))


def test_too_few_documents_are_refused_for_training_and_logged_for_validation(
    tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    write_documents(tmp_path / "train", [[1, 2, 3], [4] * 50])
    config = make(tmp_path, tmp_path / "run", data=DATA | {"split": "1,1"})
    with pytest.raises(UserError, match=r"leaves 1 document of .*train to train, 3 tokens, fewer than one"):
        train(config, alone)
    write_documents(tmp_path / "train", [[1] * 30, [4] * 50])
    config = make(tmp_path, tmp_path / "run", data=DATA | {"split": "949,50,1"}, steps=4)
    train(config, alone)
    assert "no validation: data.split = 949,50,1 leaves no sample for it" in caplog.text
    assert not any("valid_loss" in row for row in read_metrics(config.output))
