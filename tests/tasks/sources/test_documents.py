"""Files of texts that the user names: refusals, unreadable files, and their batches."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.errors import UserError
from tasks.core.storage import Folder
from tasks.sources.documents import find_documents
from tasks.sources.texts import TextsSettings, texts
from tasks.sources.user_files import grouped
from tests.tasks.corpus import Inline, rejected_of, rows_of
from tests.tasks.sources.text_files import read, write

NO_SUCH = {
    "an array": (b'[\n{"text": "a"},\n{"text": "b"}\n]\n', "x.json", r"x\.json, row 1: .*one JSON object per line.*jq"),
    "a page": (b"<html>\n<p>hello\n", "x.jsonl", r"x\.jsonl, row 1: broken_json .*one JSON object per line"),
    "packed": (gzip.compress(b'{"text": "a"}'), "x.jsonl", r"x\.jsonl, row 1: invalid_utf8 .*rename the file"),
    "another key": (b'{"body": "a", "u": 1}\n', "x.jsonl", r"row 1: no key 'text'; it has 'body', 'u'; .*--json-key"),
    "a wrong type": (b'{"text": {"a": 1}}\n', "x.jsonl", r"row 1: 'text' is dict, .*--json-key"),
    "no gzip": (b'{"text": "a"}', "x.jsonl.gz", r"x\.jsonl\.gz is not a complete \.gz file .*rename"),
    "no Parquet": (b'{"text": "a"}', "x.parquet", r"x\.parquet is not a valid Parquet file"),
    "an unknown ending": (b"a", "x.pdf", r"x\.pdf: its ending is none of \.jsonl .*rename"),
    "an archive": (b"a", "x.warc.gz", r"x\.warc\.gz: its ending .*--warcs"),
}


@pytest.mark.parametrize("kind", NO_SUCH)
def test_a_file_with_a_wrong_suffix_is_refused(tmp_path: Path, kind: str) -> None:
    data, name, said = NO_SUCH[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        find_documents([str(tmp_path / name)], "text", 2**20)


def test_a_parquet_file_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column 'text'; it has 'body', 'n'; name it with --json-key"):
        find_documents([str(tmp_path)], "text", 2**20)
    with pytest.raises(UserError, match=r"column 'n' of .* holds int64, strings expected"):
        find_documents([str(tmp_path)], "n", 2**20)


def test_a_truncated_parquet_file_is_named_by_the_step(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["words " * 50] * 1000}), tmp_path / "a.parquet", compression="none")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:60] = b"\xff" * 56  # the first page's header
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"a\.parquet is not a valid Parquet file after row 0 "):
        find_documents([str(tmp_path)], "text", 2**20)


def test_a_later_file_is_checked_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.documents.CHECKED_FILES", 1)
    files = [write(tmp_path / "1.jsonl", {"text": "a"}), write(tmp_path / "2.jsonl", {"body": "a"})]
    with pytest.raises(UserError, match=r"2\.jsonl, row 1: no key 'text'; it has 'body'"):
        read(tmp_path / "out", *files)


def test_small_files_share_a_batch_and_large_ones_have_their_own(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.jsonl", {"text": "x" * size}) for n, size in enumerate([10, 10, 900, 10, 10, 10])]
    found = find_documents([str(path) for path in paths], "text", 2**20)
    assert [len(group) for group in grouped(found.texts, 2, 800)] == [2, 1, 2, 1]
    assert [len(group) for group in grouped(found.texts, 9, 20)] == [1] * 6
    assert grouped([], 2, 800) == []


def test_unreadable_files_of_a_folder_are_rejected_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dangling link, a FIFO, a loop of links, a file that disappears; the others are read."""
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("Some text.")
    (folder / "below" / "b.txt").write_text("Another text.")
    (folder / "dangling.txt").symlink_to(tmp_path / "nowhere")
    (folder / "page.html").symlink_to(tmp_path / "nowhere.html")
    (folder / "below" / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    os.mkfifo(folder / "fifo.txt")
    (folder / "gone.txt").write_text("It goes away.")
    found = find_documents([str(folder)], "text", 1000)
    assert [file.name for file in found.texts] == [
        *("a.txt", "below/b.txt", "dangling.txt", "fifo.txt", "gone.txt", "self.txt")
    ]
    (folder / "gone.txt").unlink()
    root = Folder(tmp_path / "out")
    with Inline(workers=1) as runner:
        manifest = texts(root, found.texts, "text", TextsSettings(), runner)
    assert [row["text"] for row in rows_of(root, manifest)] == ["Some text.", "Another text."]
    assert manifest.outcome.reasons == {"unreadable": 4}
    details = {row["url"]: row["detail"] for row in rejected_of(root, manifest)}
    assert "a link to a file that is not there" in details["dangling.txt"]
    assert "no regular file" in details["fifo.txt"] and "since the run began" in details["gone.txt"]
    assert [file.fault for file in found.pages] == ["it is a link to a file that is not there"]
    with pytest.raises(UserError, match="nowhere"):  # a missing file that is named itself is a user error
        find_documents([str(tmp_path / "nowhere.txt")], "text", 1000)
