"""Storage of checkpoints: atomic saves, detection of damage, removal of old ones."""

import errno
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gpt2train.checkpoint import store
from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest, StoredFile, read_manifest, sha256, verify
from gpt2train.checkpoint.writer import clean_up, write
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import join
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from gpt2train.training.train_state import TrainState
from tests.gpt2train.checkpoint.file_limit import file_limit
from tests.gpt2train.checkpoint.stored_weights import load_weights
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad


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


def save(run: Path, step: int, keep: int = 2, keep_best: int = 0, valid_loss: float | None = None) -> Path:
    manifest = CheckpointManifest(
        format=FORMAT,
        position=TrainState(step=step, samples=8 * step, updates=step, skipped=0),
        config={"seed": 1},
        tokenizer_hash="tok",
        valid_loss=valid_loss,
        torch=torch.__version__,
        files={},
    )
    return write(run, tensors(step), manifest, keep, keep_best)


def test_saved_tensors_are_loaded(tmp_path: Path) -> None:
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


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    assert save(tmp_path, 3) == save(tmp_path, 3)
    assert [verify(path).position.step for path in list_checkpoints(tmp_path)] == [3]


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


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint in"):
        newest_checkpoint(tmp_path)
    with pytest.raises(UserError, match="is not a checkpoint"):
        load_weights(tmp_path)
    folder = save(tmp_path, 1)
    (folder / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(RunError, match="damaged or has another format version"):
        load_weights(folder)


def test_a_missing_tensor_is_an_error(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    with pytest.raises(RunError, match=r"cannot load .*model\.other"):
        store.load(folder, {"model.other": torch.zeros(3)})
    with pytest.raises(RunError, match="cannot load"):
        store.load(folder, {"model.b.bias": torch.zeros(41)})


def test_metadata_that_asks_for_foreign_code_is_refused(tmp_path: Path) -> None:
    folder, mark = save(tmp_path, 1), tmp_path / "mark"
    file = folder / ".metadata"
    file.write_bytes(pickle.dumps(CodeOnLoad(mark)))
    manifest = read_manifest(folder)
    files = manifest.files | {".metadata": StoredFile(bytes=file.stat().st_size, sha256=sha256(file))}
    (folder / "manifest.json").write_text(manifest.model_copy(update={"files": files}).model_dump_json())
    with pytest.raises(RunError, match=r"\.metadata names"):
        load_weights(folder)
    assert not mark.exists()


def test_a_save_over_the_quota_is_reported_as_no_space_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(dir: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(tempfile, "TemporaryFile", probe)  # the disk has room; torch's own error has no reason
    with file_limit(4096), pytest.raises(RunError, match=r"no space left while saving .*; free some and run again"):
        save(tmp_path, 2)


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path: Path) -> None:
    first = save(tmp_path, 1)
    with file_limit(4096), pytest.raises(RunError, match=r"cannot save .*earlier checkpoints are intact"):
        save(tmp_path, 2)
    with file_limit(0), pytest.raises(UserError, match=r"cannot write .*checkpoints"):
        clean_up(tmp_path)
    assert newest_checkpoint(tmp_path) == first
    verify(first)
