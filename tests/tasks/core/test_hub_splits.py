"""Splits of datasets, with the library `datasets` as judge of layouts and cards."""

import random
from pathlib import Path

import pytest
import yaml
from fsspec.implementations.local import LocalFileSystem

from gpt2train.errors import UserError
from tasks.core.hub_splits import files_of_split, split_of

FOLDERS = ("", "", "data/", "train/", "my_test-2/", "a/validation/", ".git/", "x/dev 1/", "trained/", "__x__/")
NAMES = (
    *("train.jsonl", "train-00000-of-00002.parquet", "part.jsonl", "eval.jsonl", "valid_1.jsonl", "testfile.jsonl"),
    *("b-test.jsonl", "own-00001-of-00002.parquet", "README.md", ".hidden.jsonl", "config.json", "training.jsonl"),
)


def write(root: Path, paths: list[str], card: str = "") -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("{}")
    if card:
        (root / "README.md").write_text(card)
    return root


def found(root: Path, name: str) -> list[str]:
    return files_of_split(LocalFileSystem(), str(root), name, lambda _: "")


@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_names_of_files_are_split_as_by_the_library(tmp_path: Path, count: int) -> None:
    data_files = pytest.importorskip("datasets.data_files", reason="the package datasets is missing")
    seen = set[str]()
    for seed in range(count):
        rng = random.Random(seed)
        paths = [rng.choice(FOLDERS) + rng.choice(NAMES) for _ in range(rng.randint(1, 6))]
        root = write(tmp_path / str(seed), paths)
        try:
            patterns = data_files.get_data_patterns(str(root))
            expected = {
                str(split): sorted(set(data_files.DataFilesList.from_patterns(given, str(root))))
                for split, given in patterns.items()
            }
        except (FileNotFoundError, data_files.EmptyDatasetError):
            assert found(root, "train") == []
            continue
        for split, paths in expected.items():
            assert found(root, split) == paths, (seed, split)
        seen |= expected.keys()
        for other in {"train", "validation", "test", "none"} - expected.keys():
            with pytest.raises(UserError, match=f"has no split '{other}'; it has "):
                found(root, other)
    assert {"train", "test"} <= seen


TWO = [{"split": "train", "path": ["data/CC-1/*", "sample/**"]}, {"split": "held", "path": "x.parquet"}]
CONFIGS = [
    {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
    {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]},
    {"config_name": "two", "data_files": TWO},
    {"config_name": "plain", "data_files": "sample/*/*.parquet"},
    {"config_name": "below", "data_dir": "sample"},
]
FILES = ["data/CC-1/000_00000.parquet", "data/CC-2/000_00000.parquet", "sample/10BT/0.parquet", "x.parquet"]


def test_a_card_names_configurations_and_their_splits(tmp_path: Path) -> None:
    data_files = pytest.importorskip("datasets.data_files", reason="the package datasets is missing")
    root = write(tmp_path, FILES, f"---\n{yaml.safe_dump({'configs': CONFIGS})}---\n# Card\n")
    for config in CONFIGS[:4]:
        for split, patterns in data_files.sanitize_patterns(config["data_files"]).items():
            expected = sorted(set(data_files.DataFilesList.from_patterns(patterns, str(root))))
            assert found(root, f"{config['config_name']}/{split}") == expected
    assert found(root, "") == found(root, "train") == found(root, "default/train") == found(root, "default")
    assert [Path(path).name for path in found(root, "below")] == ["0.parquet"]
    with pytest.raises(UserError, match="has no split 'none'; it has train"):
        found(root, "none")
    write(tmp_path / "two", FILES, f"---\n{yaml.safe_dump({'configs': CONFIGS[1:3]})}---\n")
    with pytest.raises(UserError, match="has the configurations sample-10BT, two; choose one by NAME:CONFIG/SPLIT"):
        found(tmp_path / "two", "train")


@pytest.mark.parametrize(
    ("card", "error"),
    [
        ("configs: [{config_name: a, data_files: ../../etc/*}]", r"names files elsewhere \(\.\./\.\./etc/\*\)"),
        ("configs: [{config_name: a, data_files: 'file:///etc/*'}]", "names files elsewhere"),
        ("configs: [{config_name: a, data_dir: ../other}]", r"names a folder elsewhere \(\.\./other\)"),
        *((f"configs: {configs}", "names no configurations") for configs in ("[1]", "{a: 1}", "[")),
        ("configs: [{config_name: a, data_files: 5}]", "names no configurations"),
        ("configs: [{config_name: a, data_files: [{path: x}]}]", "names no configurations"),
    ],
)
def test_a_hostile_card_is_one_line(tmp_path: Path, card: str, error: str) -> None:
    root = write(tmp_path, ["a.parquet"], f"---\n{card}\n---\n")
    with pytest.raises(UserError, match=error) as raised:
        found(root, "")
    assert "\n" not in str(raised.value)


def test_addresses_of_splits_and_of_files() -> None:
    base = "hf://datasets/some/set"
    assert split_of(base) == split_of(f"{base}/") == split_of(f"{base}:") == (base, "")
    assert split_of(f"{base}@refs/convert/parquet:a/b") == (f"{base}@refs/convert/parquet", "a/b")
    assert split_of(f"{base}@v1:test") == (f"{base}@v1", "test")
    for other in (f"{base}/data/*.parquet", f"{base}@v1/a:b.jsonl", "hf://some/model", "s3://datasets/a/b", "data"):
        assert split_of(other) is None, other


def test_the_data_are_the_files_of_the_most_frequent_kind(tmp_path: Path) -> None:
    root = write(tmp_path, ["a.parquet", "b.parquet", "LICENSE.md", "stats.json"])
    names = files_of_split(LocalFileSystem(), str(root), "", lambda path: Path(path).suffix)
    assert [Path(name).name for name in names] == ["a.parquet", "b.parquet"]
