"""Storage of checkpoints: atomic saves, detection of damage, and which of them stay, also after kills."""

import errno
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpt2train.checkpoint import store, writer
from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest, StoredFile, read_manifest, sha256, verify
from gpt2train.checkpoint.writer import clean_up, publish, write
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import join
from gpt2train.store.run_folder import checkpoint_name, list_checkpoints, newest_checkpoint, selected_checkpoint
from gpt2train.training.train_state import TrainState
from tests.gpt2train.checkpoint.file_limit import file_limit
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad, as_python_3_11_2
from tests.gpt2train.jobs import load_weights


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    join("cpu")
    yield
    dist.destroy_process_group()


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.a.weight": torch.randn(30, 40, generator=generator),
        "model.b.bias": torch.randn(40, generator=generator),
        "optim.a.weight.exp_avg": torch.randn(30, 40, generator=generator),
        "optim.a.weight.step": torch.tensor(float(seed)),
    }


def save(
    run: Path,
    step: int,
    keep: int = 2,
    keep_best: int = 0,
    valid_loss: float | None = None,
    state: dict[str, torch.Tensor] | None = None,
) -> Path:
    manifest = CheckpointManifest(
        format=FORMAT,
        position=TrainState(step=step, samples=8 * step, updates=step, skipped=0),
        config={"seed": 1},
        tokenizer_hash="tok",
        valid_loss=valid_loss,
        torch=torch.__version__,
        files={},
    )
    return write(run, state or tensors(step), manifest, keep, keep_best)


@pytest.mark.parametrize("is_old", [False, True])
def test_saved_tensors_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    if is_old:
        as_python_3_11_2(monkeypatch)
    folder = save(tmp_path, 7)
    assert folder == newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-00000007"
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000007\n"
    manifest = verify(folder)
    assert (manifest.position.samples, manifest.tokenizer_hash, manifest.config) == (56, "tok", {"seed": 1})
    state = {key: torch.zeros_like(value) for key, value in tensors(7).items()}
    store.load(folder, state)
    assert all(torch.equal(state[key], value) for key, value in tensors(7).items())
    weights = load_weights(folder)
    assert list(weights) == ["a.weight", "b.bias"]
    assert torch.equal(weights["a.weight"], tensors(7)["model.a.weight"])


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_and_named(tmp_path: Path, name: str, damage: str) -> None:
    folder = save(tmp_path, 1)
    victim = folder / name
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(data[:-1])
    else:
        victim.unlink()
    for read in (verify, load_weights):
        with pytest.raises(RunError, match=f"damaged: .*{name}"):
            read(folder)


def unhashed(checkpoint: Path) -> Path:
    """Remove the hash of a manifest, as in checkpoints of earlier versions, and return the manifest."""
    (checkpoint / ".manifest.sha256").unlink()
    return checkpoint / "manifest.json"


def test_no_flipped_bit_of_a_manifest_is_believed(tmp_path: Path) -> None:
    """A quarter of them was: a learning rate, a validation loss, the identity of the data."""
    folder = save(tmp_path, 6, valid_loss=2.5)
    manifest, hashed = folder / "manifest.json", folder / ".manifest.sha256"
    content, sound = manifest.read_bytes(), read_manifest(folder)
    for place in range(8 * len(content)):
        manifest.write_bytes(flipped(content, place))
        with pytest.raises(RunError, match=r"^.*/manifest.json is damaged \(its hash .*\); use another checkpoint$"):
            read_manifest(folder)
    manifest.write_bytes(content)
    found = hashed.read_bytes()
    assert found == f"{sha256(manifest)}  manifest.json\n".encode()  # of `sha256sum --check`
    for place in range(8 * 64):
        hashed.write_bytes(flipped(found, place))
        with pytest.raises(RunError, match=r"manifest.json is damaged"):
            read_manifest(folder)
    hashed.unlink()
    assert read_manifest(folder) == sound


def flipped(content: bytes, place: int) -> bytes:
    byte = place // 8
    return content[:byte] + bytes([content[byte] ^ 1 << place % 8]) + content[byte + 1 :]


@pytest.mark.parametrize("key", ["step", "samples", "updates", "skipped", "consecutive_skipped", "batches"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_flipped_digit_of_the_train_state_is_damage(tmp_path: Path, key: str, sign: int) -> None:
    """Without a hash a sample index of -7 ended in a traceback, another step in other samples."""
    path = unhashed(save(tmp_path, 6))
    manifest = json.loads(path.read_text())
    sound = {**manifest["position"], "batches": [[4, 8], [2, 8]]}
    path.write_text(json.dumps({**manifest, "position": sound}))
    assert read_manifest(path.parent).position.samples == 48
    flipped = [[4, 8], [2, 8 + sign]] if key == "batches" else sound[key] + sign
    path.write_text(json.dumps({**manifest, "position": {**sound, key: flipped}}))
    with pytest.raises(RunError, match=r"^.*step-00000006/manifest.json is damaged; use another checkpoint$"):
        read_manifest(path.parent)


def test_a_manifest_of_another_step_than_its_folder_is_damage(tmp_path: Path) -> None:
    folder = save(tmp_path, 6)
    other = folder.rename(folder.with_name(checkpoint_name(8)))
    with pytest.raises(RunError, match=r"step-00000008/manifest.json is damaged \(it has the step 6\)"):
        verify(other)
    assert verify(other.rename(tmp_path / "mine")).position.step == 6


def test_damaged_sizes_of_a_model_are_named_in_one_line(tmp_path: Path) -> None:
    path = unhashed(save(tmp_path, 6))
    for config in ({"mayers": 2, "layers": "two"}, {"layers": -2}, 7):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"config": {"model": config, "vocab": 9}}))
        with pytest.raises(RunError, match=r"^.*/manifest.json lacks the sizes of the model \(.*\)$"):
            store.open_weights(path.parent)


@pytest.mark.parametrize("has_metadata", [False, True])
def test_a_checkpoint_that_a_training_removes_while_it_is_read_is_named(tmp_path: Path, has_metadata: bool) -> None:
    """Its files were there when they were hashed, which takes a minute for a large model."""
    folder = save(tmp_path, 1)
    opened = store.open_tensors(folder)["a.weight"]
    shutil.rmtree(folder)
    read: Any = (lambda: opened.read(torch.float32)) if has_metadata else (lambda: store.open_tensors(folder))
    with pytest.raises(RunError, match=r"step-00000001 was removed while it was read: .*; run again"):
        read()


def test_no_checkpoint_and_a_missing_tensor_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        newest_checkpoint(tmp_path)
    with pytest.raises(UserError, match="is not a checkpoint"):
        load_weights(tmp_path)
    folder = save(tmp_path, 1)
    manifest = unhashed(folder)
    for damaged in ('{"format": 1}', manifest.read_text().replace('"position"', '"positioo"')):
        manifest.write_text(damaged)
        with pytest.raises(RunError, match=r"manifest.json is damaged; use another"):
            load_weights(folder)
    folder = save(tmp_path, 2)
    with pytest.raises(RunError, match=r"cannot load .*model\.other"):
        store.load(folder, {"model.other": torch.zeros(3)})
    with pytest.raises(RunError, match="cannot load"):
        store.load(folder, {"model.b.bias": torch.zeros(41)})


class AttributeOnLoad:
    """Asks for an attribute of something that is no enumeration."""

    def __reduce__(self) -> Any:
        return getattr, (torch.Size, "__init__")


@pytest.mark.parametrize("is_call", [True, False])
def test_metadata_that_asks_for_foreign_code_is_refused(tmp_path: Path, is_call: bool) -> None:
    folder, mark = save(tmp_path, 1), tmp_path / "mark"
    file = folder / ".metadata"
    file.write_bytes(pickle.dumps(CodeOnLoad(mark) if is_call else AttributeOnLoad()))
    manifest = read_manifest(folder)
    files = manifest.files | {".metadata": StoredFile(bytes=file.stat().st_size, sha256=sha256(file))}
    unhashed(folder).write_text(manifest.model_copy(update={"files": files}).model_dump_json())
    with pytest.raises(RunError, match=r"\.metadata names"):
        load_weights(folder)
    assert not mark.exists()


def test_a_save_over_a_limit_or_the_quota_is_reported_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(dir: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def save_too_much(expected: str) -> None:
        with file_limit(2**20), pytest.raises(RunError, match=rf"{expected} and run again: earlier checkpoints"):
            save(tmp_path, 2, state={"model.a.weight": torch.zeros(700, 700)})

    save_too_much(r"^the size limit of a file \(1\.0 MB, ulimit -f\) is reached while saving .*step-0.*; raise it")
    monkeypatch.setattr(tempfile, "TemporaryFile", probe)  # torch's own error has no reason
    save_too_much("no space left while saving .*; free some")


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    with file_limit(4096), pytest.raises(RunError, match=r"size limit .*earlier checkpoints are intact"):
        save(tmp_path, 2)
    with file_limit(0), pytest.raises(RunError, match=r"size limit .*checkpoints"):
        clean_up(tmp_path)
    assert newest_checkpoint(tmp_path) == first
    verify(first)


def retained_save(run: Path, step: int, valid_loss: float | None = None, *, last: int = 2, best: int = 1) -> Path:
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
        retained_save(tmp_path, step, loss)
    assert checkpoint_steps(tmp_path) == [2, 5, 6]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (6, 2)
    retained_save(tmp_path, 7, 2.0)
    assert checkpoint_steps(tmp_path) == [6, 7]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (7, 7)
    # Of several best ones ties go to the first; without validation, or when it is switched off, there is none.
    for step, loss in enumerate([2.0, 1.0, 1.0, 9.0, 9.0], 1):
        retained_save(tmp_path / "several", step, loss, last=1, best=2)
    assert checkpoint_steps(tmp_path / "several") == [2, 3, 5]
    assert pointer_step(tmp_path / "several", "best") == 2
    for step in (1, 2, 3):
        retained_save(tmp_path / "without", step)
        retained_save(tmp_path / "nan", step, float("nan"))
        retained_save(tmp_path / "none", step, float(step), best=0)
    assert [checkpoint_steps(tmp_path / run) for run in ("without", "nan", "none")] == [[2, 3]] * 3
    assert [pointer_step(tmp_path / run, "best") for run in ("without", "nan", "none")] == [None, None, 2]


def test_later_checkpoints_are_removed_after_a_restart_from_an_earlier_one(tmp_path: Path) -> None:
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0)):
        retained_save(tmp_path, step, loss, last=9)
    retained_save(tmp_path, 20, 2.5, last=9)  # 30 was damaged, and the run went on from 10
    assert checkpoint_steps(tmp_path) == [10, 20]
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (20, 20)
    # One with a damaged manifest is not the best, and is removed.
    (retained_save(tmp_path / "damaged", 1, 1.0) / "manifest.json").write_text("{")
    for step in (2, 3):
        retained_save(tmp_path / "damaged", step, 5.0)
    assert checkpoint_steps(tmp_path / "damaged") == [2, 3]
    assert pointer_step(tmp_path / "damaged", "best") == 2


@pytest.mark.parametrize("pointer", ["latest", "best"])
def test_leftovers_of_a_kill_are_repaired(tmp_path: Path, pointer: str) -> None:
    """Killed after the rename, after one of the pointers, in the removal of an old one, and in a draft."""
    for step in (1, 2, 3):
        retained_save(tmp_path, step, 4.0 - step)
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


def test_a_folder_in_the_place_of_a_pointer_is_kept_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retained_save(tmp_path, 1, 1.0)
    folder = tmp_path / "checkpoints"
    for name in ("latest", "best", "latest.tmp"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
        (folder / name / "mine").touch()
    clean_up(tmp_path)
    assert (pointer_step(tmp_path, "latest"), pointer_step(tmp_path, "best")) == (1, 1)
    assert all((folder / f"{name}.old" / "mine").exists() for name in ("latest", "best", "latest.tmp"))
    assert f"cannot read {folder / 'latest'}: Is a directory; it is kept in {folder / 'latest.old'}" in caplog.text
    (folder / "best").write_bytes(b"\xff\0")
    assert selected_checkpoint(tmp_path, "best") == newest_checkpoint(tmp_path)
    (folder / "best").unlink()
    (folder / "best").mkdir()
    retained_save(tmp_path, 2, best=0, last=1)  # has no best one
    assert pointer_step(tmp_path, "latest") == 2 and not (folder / "best").exists()
    manifest = folder / "step-00000002/manifest.json"
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(UserError, match=r"^cannot read .*manifest.json: Is a directory; repair it, or .*"):
        read_manifest(manifest.parent)


def test_copies_that_a_user_made_are_no_checkpoints_and_stay(tmp_path: Path) -> None:
    first = retained_save(tmp_path, 1)
    mine = shutil.copytree(first, tmp_path / "checkpoints/step-00000001-good")
    first.symlink_to(shutil.move(first, tmp_path / "elsewhere"))
    (mine / "manifest.json").rename(tmp_path / "checkpoints/step-00000001.bak")
    shutil.copytree(retained_save(tmp_path, 2), tmp_path / "checkpoints/step-00000009.best")
    for step in (3, 4, 5):
        retained_save(tmp_path, step)
    clean_up(tmp_path)
    assert checkpoint_steps(tmp_path) == [4, 5]
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert (tmp_path / "elsewhere/manifest.json").is_file() and first.name not in left
    assert left >= {"step-00000001-good", "step-00000001.bak", "step-00000009.best"}


def test_files_of_a_user_in_a_checkpoint_outlive_it(tmp_path: Path) -> None:
    for step, name in ((1, "model"), (2, ".git")):  # as by `merge CHECKPOINT --output CHECKPOINT/model`
        (retained_save(tmp_path, step) / name).mkdir()
        (tmp_path / f"checkpoints/{checkpoint_name(step)}/{name}/config.json").write_text(str(step))
    (tmp_path / "checkpoints/step-00000002/manifest.json").unlink()  # a kill in the removal
    clean_up(tmp_path)
    for step in (3, 4, 5):
        retained_save(tmp_path, step)
    assert checkpoint_steps(tmp_path) == [4, 5]
    for step in (1, 2):
        (left,) = (tmp_path / f"checkpoints/{checkpoint_name(step)}.old").iterdir()
        assert (left / "config.json").read_text() == str(step)


def test_removing_takes_the_manifest_first_and_half_of_it_does_not_stop_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = retained_save(tmp_path, 1)
    (folder / "manifest.json").unlink()
    (folder / "__0_0.distcp").write_bytes(b"x")
    assert checkpoint_steps(tmp_path) == []
    retained_save(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [1] and not (folder / "__0_0.distcp").exists()

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.remove(folder)
    assert folder.exists() and checkpoint_steps(tmp_path) == []
