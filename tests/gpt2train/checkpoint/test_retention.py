"""Retention of checkpoints: the newest and the best stay, also after kills."""

from pathlib import Path

import pytest

from gpt2train.checkpoint import writer
from gpt2train.checkpoint.manifest import CheckpointManifest
from gpt2train.checkpoint.writer import clean_up, publish
from gpt2train.store.run_folder import checkpoint_name, list_checkpoints
from gpt2train.training.train_state import TrainState


def save(run: Path, step: int, valid_loss: float | None = None, *, last: int = 2, best: int = 1) -> Path:
    """A checkpoint without tensors."""
    final = run / "checkpoints" / checkpoint_name(step)
    draft = final.with_name(final.name + ".tmp")
    draft.mkdir(parents=True)
    position = TrainState(step=step, samples=step, updates=step, skipped=0)
    manifest = CheckpointManifest(
        format=1, position=position, config={}, tokenizer_hash=None, valid_loss=valid_loss, torch="", files={}
    )
    publish(draft, final, manifest, last, best)
    return final


def checkpoint_steps(run: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(run)]


def pointer_step(run: Path, name: str) -> int | None:
    path = run / "checkpoints" / name
    return int(path.read_text().strip().removeprefix("step-")) if path.exists() else None


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    for step, loss in enumerate([5.0, 3.0, 4.0, 3.5, None, 3.2], 1):
        save(tmp_path, step, loss)
    assert checkpoint_steps(tmp_path) == [2, 5, 6]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (6, 2)
    save(tmp_path, 7, 2.0)
    assert checkpoint_steps(tmp_path) == [6, 7]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (7, 7)


def test_several_best_are_kept_and_ties_go_to_the_first(tmp_path: Path) -> None:
    for step, loss in enumerate([2.0, 1.0, 1.0, 9.0, 9.0], 1):
        save(tmp_path, step, loss, last=1, best=2)
    assert checkpoint_steps(tmp_path) == [2, 3, 5]
    assert pointer_step(tmp_path, "best") == 2


def test_no_best_is_kept_without_validation_or_when_switched_off(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path / "without", step)
        save(tmp_path / "nan", step, float("nan"))
        save(tmp_path / "none", step, float(step), best=0)
    assert [checkpoint_steps(tmp_path / run) for run in ("without", "nan", "none")] == [[2, 3]] * 3
    assert [pointer_step(tmp_path / run, "best") for run in ("without", "nan", "none")] == [None, None, 2]


def test_later_checkpoints_are_removed_after_a_restart_from_an_earlier_one(tmp_path: Path) -> None:
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0)):
        save(tmp_path, step, loss, last=9)
    save(tmp_path, 20, 2.5, last=9)  # 30 was damaged, and the run went on from 10
    assert checkpoint_steps(tmp_path) == [10, 20]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (20, 20)


def test_a_checkpoint_with_a_damaged_manifest_is_not_the_best_and_is_removed(tmp_path: Path) -> None:
    (save(tmp_path, 1, 1.0) / "manifest.json").write_text("{")
    for step in (2, 3):
        save(tmp_path, step, 5.0)
    assert checkpoint_steps(tmp_path) == [2, 3]
    assert pointer_step(tmp_path, "best") == 2


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_leftovers_of_a_kill_are_repaired(tmp_path: Path, pointer: str) -> None:
    """Killed after the rename, after one of the pointers, in the removal of an old one, and in a draft."""
    for step in (1, 2, 3):
        save(tmp_path, step, 4.0 - step)
    folder = tmp_path / "checkpoints"
    (folder / pointer).write_text("step-00000002\n")
    (folder / "step-00000001").mkdir()
    (folder / "step-00000001" / "__0_0.distcp").write_bytes(b"x")  # its manifest was removed first
    (folder / "step-00000004.tmp").mkdir()
    (folder / "step-00000004.tmp" / "manifest.json").write_text("{}")
    clean_up(tmp_path)
    assert checkpoint_steps(tmp_path) == [2, 3]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (3, 3)
    assert sorted(path.name for path in folder.iterdir()) == ["best", "latest", "step-00000002", "step-00000003"]


def test_a_half_removed_checkpoint_does_not_stop_a_save(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / "manifest.json").unlink()
    (folder / "__0_0.distcp").write_bytes(b"x")
    assert checkpoint_steps(tmp_path) == []
    save(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [1] and not (folder / "__0_0.distcp").exists()


def test_removing_takes_the_manifest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, 1)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.remove(folder)
    assert folder.exists() and checkpoint_steps(tmp_path) == []
