"""Data files of tasks: ZIP archives, labels beside the rows, and their mistakes."""

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpt2train.errors import UserError
from gpt2train.evaluate.tasks import items
from gpt2train.evaluate.tasks.description import Task
from gpt2train.evaluate.tasks.items import DataFile, Item, find_data, has_data, read_items
from gpt2train.evaluate.tasks.scores import _notes
from gpt2train.evaluate.tasks.suite import read_work
from tests.gpt2train.evaluate.test_tasks import items_of, task_of


def packed(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    """A ZIP archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def test_the_rows_of_an_archive_are_those_of_its_files(tmp_path: Path) -> None:
    rows = [{"query": f"{n}", "choices": ["a", "b"], "gold": n % 2, "part": f"{n // 3}"} for n in range(9)]
    parts = {f"data/{n}.jsonl": "".join(json.dumps(row) + "\n" for row in rows[3 * n : 3 * n + 3]) for n in range(3)}
    members = {name: text.encode() for name, text in reversed(parts.items())}
    others = {"__MACOSX/data/._0.jsonl": b"\0", "data/.hidden.jsonl": b"{", "README.md": b"rows", "data/": b""}
    (tmp_path / "Set.zip").write_bytes(packed(**members, **others))
    task = task_of(data=["**/set/*.jsonl", "**/Set.zip"], group="part")
    found = read_items(task, "t", find_data(task, "t", tmp_path))
    assert found == items_of(task, *rows) and [item.group for item in found[::3]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(**{"a.jsonl": b"{}\n" * 900})[:-40], "Set.zip cannot be unpacked .*; unpack it or fetch it again"),
        (packed(**{"a.jsonl": bytes(range(256)) * 9}).replace(b"c`dbfa", b"c`dbfb"), "cannot be unpacked"),
        (packed(**{"a.txt": b"{}"}), r"Set.zip has no \*.jsonl in it"),
        (packed(**{"a.jsonl": b" " * 40_000, "b.jsonl": b" " * 40_000}), "Set.zip has more than 65,536 bytes of rows"),
        (packed(**{"a.jsonl": b"{"}), r"Set.zip/a.jsonl line 1: no JSON object"),
        (packed(zipfile.ZIP_LZMA, **{"a.jsonl": b"{}"}).replace(b"\x05\x00\x5d", b"\x05\x00\xff"), "unpacked"),
        (gzip.compress(b"{}"), "Set.zip is compressed by gzip; unpack it, or give a ZIP archive"),
        (pa.compress(b"{}", codec="zstd", asbytes=True), "Set.zip is compressed by zstd"),
    ],
    ids=["cut off", "damaged", "no rows", "too large", "no JSON", "damaged lzma", "gzip", "zstd"],
)
def test_malformed_archives(content: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MAX_UNPACKED", 1 << 16)
    with pytest.raises(UserError, match=message):
        read_items(task_of(), "t", [DataFile("Set.zip", content)])


def read_rows_of(task: Task, rows: list[dict[str, Any]], labels: bytes | None = None) -> list[Item]:
    """Items of rows, with the content of a file of labels."""
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return read_items(task, "x", [DataFile("folder/dev.jsonl", raw, labels)])


def test_labels_beside_the_data_are_those_of_the_rows(tmp_path: Path) -> None:
    """PIQA as its authors give it out: the labels are a file of their own, whose content counts in the hash."""
    rows = [{"goal": f"goal {n}", "sol1": "one", "sol2": "two"} for n in range(4)]
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa/valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"label.*put the labels beside it, as valid-labels\.lst"):
        read_work("piqa", tmp_path)
    (tmp_path / "piqa/valid-labels.lst").write_text("0\n1\n1\n0\n")
    work = read_work("piqa", tmp_path)
    assert [item.answer for item in work.parts[0].items] == [0, 1, 1, 0]
    (tmp_path / "piqa/valid-labels.lst").write_bytes(b"\xef\xbb\xbf0\r\n1\r\n1\r\n0\r\n")  # as editors of Windows write
    assert [item.answer for item in read_work("piqa", tmp_path).parts[0].items] == [0, 1, 1, 0]
    (tmp_path / "piqa/valid-labels.lst").write_text("1\n1\n1\n0\n")
    assert read_work("piqa", tmp_path).identity() != work.identity()
    (tmp_path / "piqa/valid-labels.lst").write_text("1\n0\n")
    with pytest.raises(UserError, match="4 rows and 2 labels beside them"):
        read_work("piqa", tmp_path)


def test_labels_without_variation_are_noted() -> None:
    """Unless the description says that the right answer is always there, or there are only a few rows."""
    rows = [{"query": f"{n}", "choices": ["a", "b"], "gold": 1} for n in range(6)]
    task = Task(kind="multiple_choice", data=("x.jsonl",))
    schema = Task(kind="schema", data=("x.jsonl",))
    options = [{"context_options": ["a", "b"], "continuation": "c", "gold": 0} for _ in range(5)]

    def noted(task: Task, rows: list[dict[str, Any]]) -> list[str]:
        return _notes(task, {"task": "t", "items": len(rows), "truncated": 0}, read_rows_of(task, rows))

    [note] = noted(task, rows)
    assert note.startswith("t: all 6 answers are choice 1, so that a model that always gives it seems perfect")
    assert noted(task, rows[:4]) == noted(task, [*rows, {**rows[0], "gold": 0}]) == []
    assert noted(task.model_copy(update={"answer": 1}), rows) == []
    assert "all 5 answers are choice 0" in noted(schema, options)[0]


@pytest.mark.parametrize("name", ["/items.jsonl", "", ".", "./", "**x"])
def test_a_malformed_name_of_data(name: str, tmp_path: Path) -> None:
    task = task_of(data=[name])
    with pytest.raises(UserError, match=r"task t: data: .* is no name below a folder .*; correct it"):
        find_data(task, "t", tmp_path)
    assert not has_data(task, tmp_path)
