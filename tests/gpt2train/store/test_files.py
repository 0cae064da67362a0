"""Atomic writes of small files, and the error messages where they fail."""

import errno
import os
from pathlib import Path

import pytest

from gpt2train.errors import RunError, UserError
from gpt2train.store import files
from gpt2train.store.files import atomic_file, atomic_folder, make_folder, write_atomic
from gpt2train.store.folder import Folder


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "run.json").write_text("as it was")
    monkeypatch.setattr(files, "fsync", full)
    with pytest.raises(RunError, match=r"no space left while writing .*run\.json: free some, or .* to continue$"):
        write_atomic(tmp_path / "run.json", b"new")
    with (
        pytest.raises(RunError, match=r"no space left while writing .*model: free some"),
        atomic_folder(tmp_path / "model") as draft,
    ):
        (draft / "weights").write_bytes(b"w")
    assert (tmp_path / "run.json").read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*run\.json: .*; give another --output"):
        write_atomic(tmp_path / "file" / "run.json", b"new")


def test_each_new_folder_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder that a durable write makes is an entry of another one, which is forced to the disk as well."""
    forced: list[Path] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    def written(root: Path) -> None:
        """The folders above the file, up to the first that was there before, in the order of their making."""
        wanted = [root.parent, root, root / "a", root / "a" / "b"]
        assert [path for path in forced if path in wanted] == wanted, forced
        forced.clear()

    monkeypatch.setattr(os, "fsync", noted)
    write_atomic(tmp_path / "one" / "a" / "b" / "run.json", b"x")
    written(tmp_path / "one")
    with atomic_folder(tmp_path / "two" / "a" / "b" / "model") as draft:
        (draft / "deep").mkdir()
        (draft / "deep" / "weights").write_bytes(b"w")
    deep = [path.name for path in forced if path.name in ("deep", "weights")]
    assert sorted(deep) == ["deep", "weights"]
    written(tmp_path / "two")
    Folder(tmp_path / "three").write_bytes("a/b/part.json", b"x")
    written(tmp_path / "three")
    make_folder(tmp_path / "three" / "a")
    assert not forced, "nothing was made"


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/below", "link"):
        with pytest.raises(OSError):
            make_folder(tmp_path / place)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path)
    make_folder(tmp_path / "link" / "new" / "one")
    assert (tmp_path / "new" / "one").is_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        make_folder(Path("here/and/there"))
    assert (tmp_path / "here/and/there").is_dir()


def test_a_draft_is_renamed_when_it_is_whole_and_removed_after_an_error(tmp_path: Path) -> None:
    path, given = tmp_path / "file", tmp_path / "file.draft"
    for draft in (None, given):
        with atomic_file(path, draft) as at:
            at.write_text("one")
            assert not path.exists() and (draft is None or at == given)
        assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]
        with pytest.raises(ZeroDivisionError), atomic_file(path, draft) as at:
            at.write_text("two")
            raise ZeroDivisionError
        assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]
        path.unlink()
