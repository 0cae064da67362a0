"""An output that is removed or made read-only during a run: one line that names the folder and the remedy."""

import os
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from gpt2train.errors import UserError
from gpt2train.store.lost_files import lost_files_error, translate_lost_files
from gpt2train.store.manifest import Folder, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import read_table, write_table
from tasks.core.step import Step


def remove_first(folder: Folder, name: str, item: str) -> Outcome:
    """A batch whose input is removed before it is read."""
    shutil.rmtree(item)
    Path(item, "part-00000.parquet").read_bytes()
    return Outcome()


def remove_while_writing(folder: Folder, name: str, item: str) -> Outcome:
    """A batch whose output is removed while it writes."""
    with folder.writing("part-00000.parquet") as draft:
        draft.write_bytes(b"x")
        shutil.rmtree(item)
    return Outcome()


@pytest.mark.parametrize(("work", "gone"), [(remove_first, "clean"), (remove_while_writing, "dedup")])
def test_a_batch_names_the_folder_that_was_removed(tmp_path: Path, work: object, gone: str) -> None:
    (tmp_path / "out" / gone).mkdir(parents=True)
    step = Step(Folder(tmp_path / "out"), "dedup", version=1, parameters={}, inputs={})
    with Runner(workers=1) as runner, pytest.raises(UserError, match=f"out/{gone} was removed .*; run again"):
        runner.batches(step, "part", [str(tmp_path / "out" / gone)], work, where="thread")  # type: ignore[arg-type]


def test_the_whole_output_is_named_where_all_of_it_is_gone(tmp_path: Path) -> None:
    root = Folder(tmp_path / "out")
    with pytest.raises(UserError, match=r"/out was removed during the run"), translate_lost_files(root):
        Path(root.path("clean/part-00000.parquet")).read_bytes()


def test_a_file_that_pyarrow_misses_is_found_in_its_text(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out" / "clean")
    write_table(folder, "part-00000.parquet", pa.table({"id": ["a"]}))
    shutil.rmtree(folder.path())
    with pytest.raises(UserError, match=r"/out/clean was removed"), translate_lost_files(Folder(tmp_path / "out")):
        read_table(folder, "part-00000.parquet")
    named = FileNotFoundError(2, f"Failed to open local file '{tmp_path}/out/clean/part-00000.parquet'")
    assert "out/clean was removed" in str(lost_files_error(Folder(tmp_path / "out"), named))


def test_files_of_others_keep_their_errors(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileNotFoundError), translate_lost_files(Folder(tmp_path / "out")):
        (tmp_path / "outside.txt").read_bytes()
    with pytest.raises(IsADirectoryError), translate_lost_files(Folder(tmp_path / "out")):
        (tmp_path / "out").read_bytes()


def test_a_read_only_output_is_named_with_the_reason(tmp_path: Path) -> None:
    locked = tmp_path / "out" / "clean"
    locked.mkdir(parents=True)
    if os.geteuid() == 0:  # permissions do not bind root, but a read-only mount does
        bound = subprocess.run(["mount", "--bind", str(locked), str(locked)], capture_output=True).returncode == 0
        if not bound:
            pytest.skip("mounting is not allowed here")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(locked)], check=True)
    locked.chmod(0o500) if os.geteuid() else None
    try:
        said = r"cannot use .*/out/clean.*; give it back its permissions"
        with pytest.raises(UserError, match=said), translate_lost_files(Folder(tmp_path / "out")):
            (locked / "new.txt").write_bytes(b"x")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(locked)], check=True)
        locked.chmod(0o700)
