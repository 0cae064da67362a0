"""The publication of an output: signature, targets, readers, and the client of the hub."""

import base64
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from tests.flows.conftest import Finished


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key."""
    pytest.importorskip("model_signing", reason="the package model-signing is missing")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(private.private_bytes(*kinds))
    public = private.public_key().public_bytes(kinds[0], serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(public)
    return tmp_path / "key.pem", tmp_path / "key.pub"


def test_a_changed_document_or_manifest_breaks_the_signature(
    output: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = map(str, keys)
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
    datasets = pytest.importorskip("datasets", reason="the package datasets is missing")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source, target = str(finished.output), tmp_path / "published"
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset", "--dry-run"]) == 0
    assert not target.exists() and "model: model.safetensors (" in (dry := capsys.readouterr().out)
    assert run_command(app, ["publish", source, "--to", str(target), "--dataset"]) == 0
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert {f"model/{name}" for name in re.findall(r"model: (\S+) \(", dry)} == {
        n for n in names if n.startswith("model/")
    }
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
    flags: list[str],
    message: str,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
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


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of the hub that an upload of small files makes; it keeps each repository's files."""

    repositories: dict[str, dict[str, bytes]]
    private: dict[str, bool]
    refuses = False

    def answer(self, found: Any, status: int = 200) -> None:
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer({"id": "user/name", "siblings": [], "sha": "0" * 40})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refuses or self.headers["Authorization"] != "Bearer hf_secret":
            return self.answer({"error": "no rights to hf_secret"}, 403)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            kind, name = asked.get("type", "model"), f"user/{asked['name']}"
            self.private[kind] = asked.get("private", asked.get("visibility") == "private")
            self.repositories.setdefault(kind, {})
            return self.answer({"url": f"http://{self.headers['Host']}/{name}"})
        if "/preupload/" in self.path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if "/commit/" in self.path:
            kind = self.path.split("/")[2].removesuffix("s")
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.repositories[kind][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/user/name/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40})
        return self.answer({})  # the front matter is valid

    def log_message(self, *_: object) -> None:
        pass


def test_a_publication_is_uploaded_by_the_client_of_the_hub(
    finished: Finished, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = type("Own", (Hub,), {"repositories": {}, "private": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        own = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        command = [
            sys.executable,
            "-m",
            "gpt2train",
            "publish",
            str(finished.output),
            "--to",
            "hf://user/name",
            "--dataset",
        ]
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("published: ") == 2 and kind.private == {"model": True, "dataset": True}
        model, documents = kind.repositories["model"], kind.repositories["dataset"]
        assert model["model.safetensors"] == (finished.run / "model/model.safetensors").read_bytes()
        assert {"README.md", "config.json", "tokenizer.json", "eu-summary.md"} <= set(model)
        assert {"README.md", "croissant.json", "data/train-00000.parquet"} <= set(documents)
        kind.refuses = True
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=120)
        server.shutdown()
    assert done.returncode == 1 and "was not published (model): " in done.stderr
    assert "hf_secret" not in done.stdout + done.stderr and "Traceback" not in done.stderr
