"""`gpt2train data tokenize` of Parquet: the bytes of the same texts as JSON lines, and bad rows and files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.data import tokenize_files
from tests.gpt2train.data.test_tokenize_files import bpe, rejected, tokenize

__all__ = ["bpe"]

TEXTS = [f"Document {number}: {'the fox ' * (number % 7)}\n日本 \ufeff" for number in range(700)]


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_the_bytes_are_those_of_json_lines(
    bpe: Path, tmp_path: Path, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    assert tokenize(bpe, tmp_path / "lines/a", tmp_path / "a.jsonl", "--json-key", "body", "--workers", 1) == 0
    table = pa.table({"number": range(len(TEXTS)), "body": pa.array(TEXTS).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300, compression="zstd")
    monkeypatch.setattr(tokenize_files, "BLOCK_BYTES", 4000)  # several blocks, which end within a row group
    assert tokenize(bpe, tmp_path / "rows/a", tmp_path / "a.parquet", "--json-key", "body", "--workers", 1) == 0
    assert pair(tmp_path / "rows/a") == pair(tmp_path / "lines/a")
    assert not (tmp_path / "rows/a.rejected.jsonl").exists()


def test_rows_without_text_are_named(bpe: Path, tmp_path: Path) -> None:
    texts = pa.array([b"one", None, b"", b"\xff", b"two"], pa.binary())
    nested = pa.array([{"text": "nested"}, {"text": None}, None, {"text": ""}, {"text": "x"}])
    pq.write_table(pa.table({"text": texts, "in": nested}), tmp_path / "a.parquet")
    assert tokenize(bpe, tmp_path / "out/a", tmp_path / "a.parquet", "--workers", 1) == 0
    rows = rejected(tmp_path / "out/a")
    assert [(row["line"], row["reason"]) for row in rows] == [(2, "not_text"), (3, "empty"), (4, "not_utf8")]
    assert tokenize(bpe, tmp_path / "nulls/a", tmp_path / "a.parquet", "--workers", 1, "--json-key", "in.text") == 0
    assert [one.name for one in (tmp_path / "nulls").glob("a.b*")] == ["a.bin"]
    assert rows[0]["detail"] == "text is null" and rows[0]["file"] == str(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("body", "a.parquet has no column 'text'; it has 'body'; name it with --json-key"),
        ("text", "column 'text' of {folder}/a.parquet holds int64, strings expected; name another by --json-key"),
        ("", "a.parquet, line 1: cannot read on: not a valid Parquet file after row 0"),
    ],
)
def test_a_file_without_texts_is_refused_in_one_line(
    bpe: Path, tmp_path: Path, column: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({column: [1, 2] if column == "text" else ["a", "b"]}), tmp_path / "a.parquet")
    if not column:
        (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert tokenize(bpe, tmp_path / "out/a", tmp_path / "a.parquet", "--workers", 1) == 2
    error = capsys.readouterr().err
    assert message.format(folder=tmp_path) in error and error.count("\n") == 1
