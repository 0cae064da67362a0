"""A corpus without a model: signature, publication; energy and hours of a training on the cards."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpt2train.cli import app, run_command
from gpt2train.store.folder import Folder
from tasks.outputs.passport.cards import training_sections
from tasks.shuffle.step import ShuffleSettings, shuffle
from tests.tasks.corpus import Inline, documents_of, row


@pytest.fixture
def out(tmp_path: Path) -> Path:
    root = Folder(tmp_path / "out")
    with Inline(workers=1) as runner:
        rows = [row(f"The text of page {number}.", split="train") for number in range(5)]
        shuffle(root, documents_of(root, rows), ShuffleSettings(), runner)
    return tmp_path / "out"


def write_key(path: Path, kind: str) -> tuple[str, str]:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    private = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    pem, public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    kinds = pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (path / f"{kind}.pem").write_bytes(private.private_bytes(*kinds))
    (path / f"{kind}.pub").write_bytes(private.public_key().public_bytes(pem, public))
    return str(path / f"{kind}.pem"), str(path / f"{kind}.pub")


def test_the_signature_covers_croissant_json(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("model_signing")
    private, public = write_key(tmp_path, "ec")
    assert run_command(app, ["passport", str(out), "--sign", private]) == 0
    assert run_command(app, ["passport", str(out), "--check", public]) == 0
    kept = (out / "croissant.json").read_bytes()
    for changed in (kept.replace(b"e", b"E", 1), None):
        (out / "croissant.json").unlink()
        if changed is not None:
            (out / "croissant.json").write_bytes(changed)
        capsys.readouterr()
        assert run_command(app, ["passport", str(out), "--check", public]) == 1
        assert "not as signed: croissant.json" in capsys.readouterr().err
        (out / "croissant.json").write_bytes(kept)
    assert run_command(app, ["passport", str(out), "--check", public]) == 0


def test_a_key_of_another_kind_is_one_line(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("model_signing")
    private, public = write_key(tmp_path, "rsa")
    assert run_command(app, ["passport", str(out), "--sign", write_key(tmp_path, "ec")[0]]) == 0
    (tmp_path / "text").write_text("no key")
    wrong = [("--sign", private), ("--sign", str(tmp_path / "text"))]
    wrong += [("--check", public), ("--check", str(tmp_path / "text"))]
    for flag, key in wrong:
        capsys.readouterr()
        assert run_command(app, ["passport", str(out), flag, key]) == 2
        error = capsys.readouterr().err
        assert f"{flag} {key} is no" in error and len(error.splitlines()) == 1


def test_a_corpus_without_a_model_is_published_to_a_folder(out: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is missing")
    target = tmp_path / "published"
    assert run_command(app, ["publish", str(out), "--to", str(target), "--dataset"]) == 0
    assert {"README.md", "croissant.json", "data"} <= {path.name for path in target.iterdir()}
    loaded = datasets.load_dataset(str(target), split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded["text"][:]) == [f"The text of page {number}." for number in range(5)]


@pytest.mark.parametrize(
    ("gpu", "cpu", "expected"),
    [
        (1.5, None, "1.5 kWh of the GPUs, by NVML"),
        (None, 0.25, "0.25 kWh of the CPU packages, by RAPL"),
        (1.5, 0.25, "1.5 kWh of the GPUs, by NVML; 0.25 kWh of the CPU packages, by RAPL"),
        (None, None, "unknown (not measured)"),
    ],
)
def test_the_card_names_what_was_measured(gpu: float | None, cpu: float | None, expected: str) -> None:
    run = SimpleNamespace(gpu_kwh=gpu, cpu_kwh=cpu, hours=2.0, rows=[{}])
    training: Any = SimpleNamespace(run=run, devices=("cpu",))
    ((title, text),) = training_sections(training)
    assert title == "Cost"
    assert f"| energy | {expected} |" in text
