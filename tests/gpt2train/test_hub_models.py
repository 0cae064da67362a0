"""Models by their address on the hub, from a hub on loopback by the real client."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.inference import open_model
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
    return python(hub, tmp_path, "-m", "gpt2train", *words)


def python(hub: Hub, tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, *words]
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
    named = run(hub, tmp_path, *words[:2], f"some/model@{commit}", *words[3:], "--max-new-tokens", "14")
    assert named.stdout == done.stdout, named.stderr


def test_scores_of_a_model_are_the_users_and_no_part_of_the_cache(
    hub: Hub, tmp_path: Path, files: dict[str, bytes]
) -> None:
    hub.put(NAME, files)
    (tmp_path / "cloze.jsonl").write_text('{"text": "the text that it knows"}\n')
    done = run(hub, tmp_path, "evaluate", "lambada", "--model", "some/model", "--data", "cloze.jsonl")
    assert done.returncode == 0, done.stderr
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("lambada.json")] == [
        "eval/some--model/lambada.json"
    ]
    (tmp_path / "own").mkdir()
    for name, content in (files | {"eval": b"of someone else"}).items():
        (tmp_path / "own" / name).write_bytes(content)
    done = run(hub, tmp_path, "evaluate", "lambada", "--model", "own", "--data", "cloze.jsonl")
    assert done.returncode == 2 and "give another --output" in done.stderr and done.stdout == ""  # before the scoring
    (tmp_path / "own/eval").unlink()
    (tmp_path / "own/eval").mkdir()
    (tmp_path / "own/eval/lambada.json").write_text("[]")
    done = run(hub, tmp_path, "evaluate", "lambada", "--model", "own", "--data", "cloze.jsonl")
    assert done.returncode == 2 and "contains no scores; give another --output" in done.stderr and done.stdout == ""


def test_a_tokenizer_is_downloaded_without_the_weights(hub: Hub, tmp_path: Path, files: dict[str, bytes]) -> None:
    commit = hub.put(NAME, files)
    (tmp_path / "a.jsonl").write_text('{"text": "the text"}\n')
    program = """
import sys
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import own_files

print(sorted(own_files(TokenizerSettings(name="folder", folder=sys.argv[1]))[0]))
"""
    found = [
        python(hub, tmp_path, "-c", program, address) for address in ("hf://some/model", f"hf://some/model@{commit}")
    ]
    assert found[0].stdout == found[1].stdout and "tokenizer.json" in found[0].stdout, found[0].stderr
    done = run(hub, tmp_path, "data", "tokenize", "a.jsonl", "--output", "a", "--tokenizer", "hf://some/model")
    assert done.returncode == 0 and "1 document, 8 tokens" in done.stdout, done.stderr
    assert not any("safetensors" in call for call in hub.calls)
    assert all("some/model" in call for call in hub.calls)  # and nothing that no address names, as telemetry


def test_what_is_no_model_of_the_hub_is_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.put("datasets/some/data", {"x.json": b"{}"})
    for address, said in (
        ("hf://no/such", "the hub has no such repository, or it is private; check it or set HF_TOKEN"),
        ("no/such", "there is no folder no/such, and hf://no/such: the hub has no such repository"),
        ("hf://datasets/some/data", "is no model of the hub; write hf://ORG/NAME, or hf://ORG/NAME@REVISION"),
    ):
        done = run(hub, tmp_path, "convert", address, "out", "--to", "gpt2train")
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert done.stderr.startswith("error: ") and said in done.stderr and done.stderr.count("\n") == 1


def test_a_path_that_should_be_local_asks_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out/model").mkdir(parents=True)
    for path in ("out/model", "out/modle", "./some/model", "model", "a/b/c", "../some/model", "/some/model", "hf/", ""):
        assert open_model.model_address(path) == path
    assert (
        open_model.model_address("some/model@v1.0")
        == "hf://some/model@v1.0"
        == open_model.model_address("hf:/some/model@v1.0")
    )


def test_all_processes_of_a_model_read_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_model, "pinned", lambda url: f"{url}@commit" if url.startswith("hf://") else url)
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words[-5:]))
    started: list[list[str]] = []
    for given in (["--tokenizer", "some/model"], ["--model=hf://some/model", "x"]):
        monkeypatch.setattr(sys, "argv", ["gpt2train", "generate", *given, "--prompt", "hf://some/model"])
        open_model.exec_torchrun(2)
    assert started == [
        ["generate", "--tokenizer", "hf://some/model@commit", "--prompt", "hf://some/model"],
        ["generate", "--model=hf://some/model@commit", "x", "--prompt", "hf://some/model"],
    ]


def test_a_hostile_hub_writes_nothing_outside_of_its_cache(hub: Hub, tmp_path: Path, files: dict[str, bytes]) -> None:
    hub.put(NAME, {**files, "../../../../../../evil.json": b"{}", "/evil.json": b"{}"})
    done = run(hub, tmp_path, "convert", "hf://some/model", "out", "--to", "gpt2train")
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr
    assert not [path for path in tmp_path.rglob("evil.json") if "snapshots" not in path.parts]
    assert not (tmp_path.parent / "evil.json").exists() and not Path("/evil.json").exists()
