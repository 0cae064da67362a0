"""Models by their address on the hub, from a hub on loopback by the real client."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpt2train.serve.fixed_text_model import write_reciting_model
from tests.hub_server import Hub

NAME = "models/some/model"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model") / "model"
    write_reciting_model(folder, "the text that it knows")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        yield server


def run(hub: Hub, tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "gpt2train", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)


def test_a_model_is_downloaded_once_and_without_pickles(hub: Hub, tmp_path: Path, files: dict[str, bytes]) -> None:
    commit = hub.put(NAME, {**files, "pytorch_model.bin": b"a pickle" * 200, "onnx/model.onnx": b"x" * 2000})
    words = ("generate", "--model", "hf://some/model", "--prompt", "the text", "--temperature", "0")
    done = run(hub, tmp_path, *words, "--max-new-tokens", "14")
    assert done.returncode == 0 and "the text that it knows" in done.stdout, done.stderr
    sent = [call for call in hub.calls if call.startswith("GET") and ("/resolve/" in call or "/cdn/" in call)]
    assert sent and not any("pickle" in call or ".bin" in call or "onnx" in call for call in sent)
    hub.calls.clear()
    hub.put(NAME, {"config.json": b"{}"})  # `main` moves on
    again = run(hub, tmp_path, *words[:2], f"hf://some/model@{commit}", *words[3:], "--max-new-tokens", "14")
    assert again.stdout == done.stdout and not [call for call in hub.calls if "/resolve/" in call]


def test_what_is_no_model_of_the_hub_is_told_in_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.put("datasets/some/data", {"x.json": b"{}"})
    for address, said in (
        ("hf://no/such", "the hub has no such repository, or it is private; check it, or set HF_TOKEN"),
        ("hf://datasets/some/data", "is no model of the hub; write hf://ORG/NAME, or hf://ORG/NAME@REVISION"),
    ):
        done = run(hub, tmp_path, "convert", address, "out", "--to", "gpt2train")
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert done.stderr.startswith("error: ") and said in done.stderr and done.stderr.count("\n") == 1
