"""The publication of an output: signature, targets, readers, and the client of the hub."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from tests.flows.conftest import Finished
from tests.hub_server import Hub


def test_a_changed_document_or_manifest_breaks_the_signature(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("model_signing", reason="the package model-signing is missing")
    private, public = str(tmp_path / "key.pem"), str(tmp_path / "key.pub")
    for words in (
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private],
        ["ec", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    assert run_command(app, ["passport", str(output), "--sign", private]) == 0
    assert run_command(app, ["passport", str(output), "--check", public]) == 0
    for name, shown in (("passport/README.md", "README.md"), ("clean/_manifest.json", "clean/_manifest.json")):
        kept = (output / name).read_bytes()
        (output / name).write_bytes(kept.replace(b"e", b"E", 1))
        capsys.readouterr()
        assert run_command(app, ["passport", str(output), "--check", public]) == 1
        assert shown in capsys.readouterr().err
        (output / name).write_bytes(kept)
    assert run_command(app, ["passport", str(output), "--check", public]) == 0
    assert run_command(app, ["passport", str(output), "--sign", public]) == 2
    assert "is no private key" in capsys.readouterr().err


def test_a_publication_is_loaded_by_its_readers(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source, target = str(finished.output), tmp_path / "published"
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset", "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert not target.exists() and "model: model.safetensors (" in dry
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset"]) == 0
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    listed = {f"model/{name}" for name in re.findall(r"model: (\S+) \(", dry)}
    assert listed == {name for name in names if name.startswith("model/")}
    assert not [name for name in names if re.search(r"/[._]|_manifest|rejected|checkpoints", name)]
    loaded = datasets.load_dataset(str(target / "dataset"), split="train", cache_dir=str(tmp_path / "cache"))
    shards = sorted((finished.output / "shuffled").glob("*.parquet"))
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist() if row["split"] == "train"]
    assert loaded["text"][:] == [row["text"] for row in rows] and loaded["id"][:] == [row["id"] for row in rows]
    model = transformers.AutoModelForCausalLM.from_pretrained(target / "model")
    own = transformers.AutoModelForCausalLM.from_pretrained(finished.run / "model")
    assert all((p == q).all() for p, q in zip(model.parameters(), own.parameters(), strict=True))
    assert run_command(app, ["publish", source, "--to", str(tmp_path / "again"), "--dataset"]) == 0
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (target / name).read_bytes(), name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "hf://name"], "write it as hf://USER/NAME"),
        (["--to", "hf://user/../name"], "write it as hf://USER/NAME"),
        (["--to", "s3://bucket/x"], "give hf://USER/NAME or a local folder"),
        (["--to", "hf:user/name"], "give hf://USER/NAME or a local folder"),
        (["--to", ""], "give hf://USER/NAME or a local folder"),
        (["--to", "hf://user/name"], "set HF_TOKEN"),
        (["--to", "."], "exists already"),
    ],
)
def test_what_cannot_be_published_is_one_line(
    flags: list[str], message: str, finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert run_command(app, ["publish", str(finished.output), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(app, ["publish", str(tmp_path), "--to", str(tmp_path / "x")]) == 2
    assert run_command(app, ["publish", str(tmp_path / "none"), "--to", str(tmp_path / "x")]) == 2
    assert run_command(app, ["passport", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "has no model" in err and "is not a folder" in err and "holds neither a corpus nor a run" in err


@pytest.mark.slow
def test_a_publication_is_uploaded_once(finished: Finished, output: Path, tmp_path: Path) -> None:
    """Model, tokenizer, template, cards and documents; what has not changed is neither sent nor committed again."""
    run = output / "runs" / finished.run.name
    (run / "model/chat_template.jinja").write_text("{{ messages[0].content + eos_token }}")
    with Hub() as hub:
        hub.token = "hf_secret"
        own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": hub.token, "HF_HOME": str(tmp_path)}  # it speaks LFS, no Xet
        publishing = [sys.executable, "-m", "gpt2train", "publish", str(output), "--to", "hf://user/name", "--dataset"]

        def publish(status: int = 0) -> "subprocess.CompletedProcess[str]":
            done = subprocess.run(publishing, env=os.environ | own, capture_output=True, text=True, timeout=240)
            assert done.returncode == status, done.stderr
            assert "hf_secret" not in done.stdout + done.stderr and "Traceback" not in done.stderr
            return done

        assert publish().stdout.count("published: ") == 2
        assert hub.private == {"models/user/name": True, "datasets/user/name": True}
        model, documents = (hub.repositories[f"{kind}/user/name"][-1][1] for kind in ("models", "datasets"))
        for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md", "config.json"):
            assert model[name] == (run / "model" / name).read_bytes()
        assert "eu-summary.md" in model
        assert {"README.md", "croissant.json", "data/train-00000.parquet"} <= set(documents)

        commits = {name: len(made) for name, made in hub.repositories.items()}
        hub.calls.clear()
        publish()
        assert {name: len(made) for name, made in hub.repositories.items()} == commits
        assert not [call for call in hub.calls if call.startswith("PUT") or "/commit/" in call or "agent" in call]

        (run / "model/README.md").write_text("---\nlicense: mit\n---\n")
        publish()
        commits["models/user/name"] += 1
        assert {name: len(made) for name, made in hub.repositories.items()} == commits
        assert hub.repositories["models/user/name"][-1][1] == model | {"README.md": b"---\nlicense: mit\n---\n"}
        hub.token = "another"
        assert "was not published (model): " in publish(1).stderr
