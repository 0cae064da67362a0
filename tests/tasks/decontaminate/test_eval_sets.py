"""Evaluation sets of every format, and errors for files that are none."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.errors import UserError
from tasks.decontaminate.eval_sets import EvaluationSet, check_sets, find_sets, passages


def sets(folder: Path, name: str, data: bytes, key: str = "text") -> list[EvaluationSet]:
    (folder / name).write_bytes(data)
    return find_sets((), [str(folder / name)], key)


def rows(folder: Path, name: str, data: bytes, key: str = "text") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for item in sets(folder, name, data, key) for row in passages(item)]


@pytest.mark.parametrize("name", ["s.jsonl", "s.ndjson", "s.json", "s.jsonl.gz"])
def test_json_lines_are_read(tmp_path: Path, name: str) -> None:
    data = b'{"text": "x y"}\n\n{"text": "z"}\n{"text": " "}'
    data = gzip.compress(data) if name.endswith(".gz") else data
    assert rows(tmp_path, name, data) == [("s", 1, "x y"), ("s", 3, "z")]


def test_plain_text_is_split_into_lines_and_paragraphs(tmp_path: Path) -> None:
    data = "\ufeffone\r\ntwo\n \nthree\n\nfour\nfive".encode()
    assert rows(tmp_path, "s.txt", data) == [
        ("s", 1, "one"),
        ("s", 2, "two"),
        ("s", 1, "one\ntwo"),
        ("s", 4, "three"),
        ("s", 6, "four"),
        ("s", 7, "five"),
        ("s", 6, "four\nfive"),
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_parquet_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"n": [1, 2], "q": pa.array(["x", "y"], kind)}), tmp_path / "s.parquet")
    assert rows(tmp_path, "s.parquet", (tmp_path / "s.parquet").read_bytes(), "q") == [("s", 1, "x"), ("s", 2, "y")]


def test_sets_of_one_name_get_distinct_names(tmp_path: Path) -> None:
    for name in ("lambada.txt", "a.txt", "a.jsonl", "b.txt"):
        (tmp_path / name).write_text('{"text": "x"}')
    found = find_sets([("lambada", str(tmp_path / "b.txt"))], [str(tmp_path)], "text")
    assert [item.name for item in found] == ["lambada", "a", "a-2", "b", "lambada-2"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', r"a.jsonl, row 2 \(KeyError\): expected {\"text\": …}"),
        ("a.jsonl", b'{"text": "x"}\nplain\n', r"row 2 \(JSONDecodeError\)"),
        ("a.jsonl", b"[]", r"row 1 \(TypeError\)"),
        ("a.jsonl", b'{"text": 3}', "row 1: 'text' is int; expected text, see decontaminate.key"),
        ("a.txt", b"x\n\xff\xfe", "a.txt is not UTF-8 in line 2"),
        ("a.jsonl", b"\n\n", "a.jsonl holds no passage; give another file"),
        ("a.txt", b"", "a.txt holds no passage"),
        ("a.parquet", b"PAR1", "a.parquet is not a Parquet file"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz is not a complete .gz file"),
    ],
)
def test_files_that_are_no_evaluation_set_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(tmp_path, name, data)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"has no column 'text', but question, n; name one with decontaminate\.key"):
        check_sets([str(tmp_path / "a.parquet")], "text")


def test_the_check_reads_only_the_first_passage(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\nbroken\n')
    check_sets([str(tmp_path)], "text")
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        check_sets([str(tmp_path / "nowhere.txt")], "text")
