"""Readers of task files, and task files themselves: every format gives the same rows, wrong ones one line."""

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.settings import build
from tasks.core.input_files import find_inputs
from tasks.finetune.rows import Row, read_rows
from tasks.finetune.settings import TaskSettings, read_task

# Text of a value that a line can hold.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\ufeff")
VALUE = st.text(LETTERS, min_size=1).filter(str.strip)


def task(kind: str = "classification", **data: Any) -> TaskSettings:
    return build(TaskSettings, {"kind": kind, "data": {"train": "x", **data}})


def rows_of(path: Path, settings: TaskSettings) -> list[Row]:
    [file] = find_inputs([str(path)], "data.train", ())
    return list(read_rows(file, settings))


@given(st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=1, max_size=9), st.booleans())
def test_every_format_gives_the_same_rows(values: list[tuple[str, str, str]], mark: bool) -> None:
    names = ("text", "pair", "label")
    expected = [dict(zip(names, row, strict=True)) for row in values]
    begin = "\ufeff" if mark else ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = ["\t".join(row) for row in (names, *values)]
        (folder / "a.tsv").write_text(begin + "\r\n".join(lines) + "\n", encoding="utf-8", newline="")
        quoted = io.StringIO()
        csv.writer(quoted).writerows([names, *values])
        (folder / "a.csv").write_text(begin + quoted.getvalue(), encoding="utf-8", newline="")
        objects = "".join(json.dumps(row) + "\n" for row in expected)
        (folder / "a.jsonl").write_text(begin + objects, encoding="utf-8")
        (folder / "a.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False), encoding="utf-8")
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(objects.encode()))
        pq.write_table(pa.Table.from_pylist(expected), folder / "a.parquet")
        for file in ("a.tsv", "a.csv", "a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"):
            assert [row.values for row in rows_of(folder / file, task(pair="pair"))] == expected, file


def test_quotes_are_text_in_tabs_and_enclose_values_in_commas(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('text\tlabel\n"He said\t1\nno" end\t0\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "a.txt", task())] == ['"He said', 'no" end']
    (tmp_path / "a.csv").write_text('text,label\n"one, two\nlines ""quoted""",1\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "a.csv", task())] == ['one, two\nlines "quoted"']
    (tmp_path / "b.tsv").write_text('text\tlabel\n"a\tb"\t1\n')
    assert [row.values["text"] for row in rows_of(tmp_path / "b.tsv", task(quotes=True))] == ["a\tb"]


def test_columns_may_be_named_in_the_task(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,one\n0,two\n")
    rows = rows_of(tmp_path / "a.csv", task(columns=["label", "text"]))
    assert [row.values for row in rows] == [{"label": "1", "text": "one"}, {"label": "0", "text": "two"}]


def test_rows_that_cannot_be_read_have_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\none\t1\nshort\n\n\xff\t1\nlong\t1\t2\n")
    reasons = [row.reason for row in rows_of(tmp_path / "a.tsv", task())]
    assert reasons == ["", "wrong_columns", "invalid_utf8", "wrong_columns"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one", "label": 1}\n[1]\n{"text"\n\xff\n\n{"text": "b"}\n')
    found = {row.number: row.reason for row in rows_of(tmp_path / "a.jsonl", task())}
    assert found == {1: "", 2: "invalid_json", 3: "invalid_json", 4: "invalid_json", 6: ""}


HEAD = "it has 'text', 'label'; name it in data."


@pytest.mark.parametrize(
    ("name", "content", "data", "said"),
    [
        ("a.tsv", b"text\tlabel\na\tb\n", {"text": "sentence"}, f"no column 'sentence'; {HEAD}"),
        ("a.tsv", b"text\tlabel\na\tb\n", {"pair": "two"}, f"no column 'two'; {HEAD}p"),
        ("a.tsv", b"text\tlabel\n", {}, "has no rows that can be read as tsv"),
        ("a.tsv", b"", {}, "has no rows that can be read as tsv"),
        ("a.json", b"[]", {}, "has no rows that can be read as json"),
        ("a.json", b"[1, 2", {}, "is not JSON"),
        ("a.csv", b'text,label\n"a,1\n', {}, "set data.quotes = false"),
        ("a.csv", b"text,label\n\xff,1\n", {}, "is not UTF-8 after row"),
        ("a.parquet", b"no parquet", {}, "is not a valid Parquet file"),
        ("a.xyz", b"text", {}, "no format has the suffix '.xyz'"),
        ("a.tsv.gz", b"no gzip", {}, "is not a complete .gz file"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, name: str, content: bytes, data: dict[str, Any], said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        rows_of(tmp_path / name, task(**data))
    assert said in str(refused.value) and "\n" not in str(refused.value)


TEXT, LABELS = "kind = 'text'\n[data]\ntrain = 'a'\n", "kind = 'classification'\n[data]\ntrain = 'a'\nlabels = "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind = 'x'\n[data]\ntrain = 'a'", "kind: input should be 'classification', 'answers' or 'text'"),
        ("[data]\ntrain = 'a'", "is not a task file: it has no kind"),
        ("kind = 'text'", "is not a task file: it has no [data]"),
        (f"{TEXT}labels = ['a', 'b']", "are for classification, not for text"),
        (f"{TEXT}messages = 'm'", "data.messages is for answers"),
        (f"{LABELS}['a']", "1 labels; a classification has from 2"),
        (f"{LABELS}['a', 'a']", "a label is given twice"),
        (f"{TEXT}valid = 'b'\nholdout = 0.1", "valid and holdout both give"),
        ("kind = 'text'\n[data]\ntrian = 'a'", "data.train"),
        ("kind = ", "is not valid TOML"),
    ],
)
def test_wrong_task_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(UserError) as refused:
        read_task(str(tmp_path / "task.toml"))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_paths_are_relative_to_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text("kind = 'text'\n[data]\ntrain = ['a', '/b', 's3://c/d']\ntest = 'e'\n")
    data = read_task(str(tmp_path / "task.toml")).data
    assert data.train == (f"{tmp_path}/a", "/b", "s3://c/d") and data.test == (f"{tmp_path}/e",) and data.valid == ()
    numbers = build(TaskSettings, {"kind": "classification", "data": {"train": "a", "labels": [0, 1, 2]}})
    assert numbers.data.labels == ("0", "1", "2")
