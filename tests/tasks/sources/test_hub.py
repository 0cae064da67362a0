"""Documents by an address of the hub, read by the real client from a hub on loopback."""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from gpt2train.errors import TransientError, UserError
from tasks.core import input_files
from tasks.core.input_files import InputFile, unreachable
from tasks.sources import text_records
from tests.hub_server import Hub

# The client reads its environment when it is imported.
PROGRAM = """
import json, os, sys
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from tasks.core.input_files import find_inputs
from tests.tasks.corpus import rows_of
from tests.tasks.sources.text_files import read

answers = []
for root, pattern in json.loads(sys.argv[1]):
    try:
        files = find_inputs([pattern], "--documents", (".jsonl", ".parquet"))
        done = read(root, pattern)
        texts = [row["text"] for row in rows_of(Folder(root), done)]
        found = {"fingerprint": done.fingerprint, "texts": texts, "reasons": done.outcome.reasons, "read": done.read}
        answers.append(found | {"files": [[file.location, file.identity] for file in files]})
    except (UserError, RunError) as error:
        answers.append({"error": str(error)})
print(json.dumps(answers), flush=True)
"""
NAME = "datasets/some/corpus"


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(*texts: str, noise: int = 20_000) -> bytes:
    sink = io.BytesIO()
    others = [os.urandom(noise).hex() for _ in texts]
    pq.write_table(pa.table({"text": texts, "other": others}), sink, compression="none")
    return sink.getvalue()


LARGE = lines(*(f"a text of the hub with the number {number}" for number in range(60)))
SMALL = lines("a small file")


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the package `flows` sets in a process of tests."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        yield server


def ask(hub: Hub, tmp_path: Path, *pairs: tuple[str, str], **variables: str) -> list[dict[str, Any]]:
    """Read each address into an output of its own, in one new process."""
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), **variables}
    given = json.dumps([[str(tmp_path / name), address] for name, address in pairs])
    command = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "secret-token" not in done.stdout + done.stderr
    return list(json.loads(done.stdout))


def test_files_are_pinned_and_known_by_the_hubs_hashes(hub: Hub, tmp_path: Path) -> None:
    first = hub.put(NAME, {"data/a.jsonl": LARGE, "data/b/c.jsonl": SMALL, "README.md": b"x"})
    address = f"hf://{NAME}/data/**/*.jsonl"
    [found] = ask(hub, tmp_path, ("one", address))
    assert len(found["texts"]) == 61 and not found["reasons"]
    [[large, tag], [small, _]] = found["files"]
    assert large == f"hf://{NAME}@{first}/data/a.jsonl" and small == f"hf://{NAME}@{first}/data/b/c.jsonl"
    assert tag == hashlib.sha256(LARGE).hexdigest()  # as that of a local copy
    assert sum("/cdn/" in call for call in hub.calls) == 2  # its beginning is checked, then it is read

    assert found["read"] == {f"hf://{NAME}": first}

    # The branch moves: a change elsewhere changes nothing, the earlier commit can be named, a new text is read.
    second = hub.put(NAME, {"data/a.jsonl": LARGE, "data/b/c.jsonl": SMALL, "README.md": b"y"})
    third = hub.put(NAME, {"data/a.jsonl": LARGE + SMALL})
    moved = f"hf://{NAME}@{second}/data/**/*.jsonl"
    done, new, same, other = ask(
        hub, tmp_path, ("one", moved), ("new", moved), ("two", f"hf://{NAME}@{first}/data"), ("three", address)
    )
    assert done["fingerprint"] == new["fingerprint"] == found["fingerprint"]
    assert done["read"] == found["read"] and new["read"] == {f"hf://{NAME}": second}  # the commit that was read
    assert same["texts"] == found["texts"] and other["fingerprint"] != found["fingerprint"]
    assert other["read"] == {f"hf://{NAME}": third}
    assert len(other["texts"]) == 61 and other["texts"][-1] == "a small file"


def test_a_busy_or_broken_hub_is_asked_again_and_a_private_one_needs_a_token(hub: Hub, tmp_path: Path) -> None:
    hub.put(NAME, {"a.jsonl": LARGE})
    hub.busy, hub.broken, hub.token = 2, 1, "secret-token"
    pairs = [("one", f"hf://{NAME}/*.jsonl")]
    [found] = ask(hub, tmp_path, *pairs, HF_TOKEN="secret-token")
    assert len(found["texts"]) == 60
    hub.busy = 0
    [found] = ask(hub, tmp_path, ("two", f"hf://{NAME}/*.jsonl"), HF_TOKEN="")
    assert f"{NAME}/*.jsonl: the hub has no such repository, or it is private; check it, or set" in found["error"]


@pytest.mark.parametrize(
    ("asked", "low", "high"), [("7", 7, 7), ("date", 50, 60), ("soon", 1, 1), ("", 1, 1), ("86400", None, None)]
)
def test_a_busy_hub_is_asked_again_when_it_says(
    asked: str, low: int | None, high: int | None, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put(NAME, {})
    hub.busy, waits = 1, list[float]()
    hub.retry_after = formatdate(time.time() + 60, usegmt=True) if asked == "date" else asked
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "On")
    monkeypatch.setattr("gpt2train.store.hub.time", types.SimpleNamespace(sleep=waits.append))
    if low is None or high is None:
        with pytest.raises(UserError, match=r"cannot ask the hub for hf://datasets/some/corpus \(.*429.*try again"):
            input_files.pinned("hf://datasets/some/corpus")
        assert len(hub.calls) == 1 and not waits
    else:
        assert input_files.pinned("hf://datasets/some/corpus").startswith("hf://datasets/some/corpus@")
        assert len(waits) == 1 and low <= waits[0] <= high


class Away(io.RawIOBase):
    """A file of a hub that goes away: its first and last 30,000 bytes can be read."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = offset + (0, self.place, len(self.content))[whence]
        return self.place

    def tell(self) -> int:  # retired-word: ok
        return self.place

    def readinto(self, buffer: Any) -> int:
        data = self.content[self.place : self.place + min(len(buffer), 10_000)]
        if 30_000 < self.place < len(self.content) - 30_000:
            raise httpx.ConnectError("[Errno -2] Name or service not known")
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_hub_that_goes_away_is_an_error_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    content = parquet(*map(str, range(20))) if name.endswith("parquet") else lines(*(["word " * 99] * 400))
    for module in (input_files, text_records):
        monkeypatch.setattr(module, "open_raw", lambda *_, **__: Away(content))
    file = InputFile(f"hf://{NAME}@0/{name}", name, len(content), "x")
    with pytest.raises(TransientError, match=rf"cannot read hf://.*{name}: .*Name or service not known; run again"):
        list(text_records.read_items(file, "text", 10**6))


def test_a_refusal_of_the_hub_is_not_tried_again() -> None:
    for status, again in ((403, False), (404, False), (429, True), (503, True)):
        request = httpx.Request("GET", "http://hub.test")
        error = httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))
        assert (unreachable("hf://x", error) is not None) is again, status


def test_a_column_is_read_without_the_others(hub: Hub, tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(50)]
    content = parquet(*texts, noise=500_000)
    hub.put(NAME, {"data/0.parquet": content})
    [found] = ask(hub, tmp_path, ("one", f"hf://{NAME}/data/*.parquet"))
    assert found["texts"] == texts and hub.sent < len(content) / 2  # it is opened twice, blocks are read of 4 MiB


def test_mistakes_are_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.put(NAME, {"a.jsonl": SMALL})
    wrong = {
        "hf://datasets/some/other/*.jsonl": "no such repository",
        f"hf://{NAME}@nope/*.jsonl": "no such repository",
        f"hf://{NAME}/none/*.jsonl": "no such file",
        "hf://some": "write hf://datasets/ORG/NAME/PATH",
    }
    answers = ask(hub, tmp_path, *((str(number), address) for number, address in enumerate(wrong)))
    for answer, part in zip(answers, wrong.values(), strict=True):
        assert part in answer["error"] and "\n" not in answer["error"], answer
    with Hub() as away:
        pass
    [answer] = ask(away, tmp_path, ("away", f"hf://{NAME}/*.jsonl"))
    assert "try again, or set HF_ENDPOINT" in answer["error"], answer


def test_a_flow_asks_the_hub_for_its_addresses_alone(hub: Hub, tmp_path: Path) -> None:
    texts = [f"document {number}: {'some words of it. ' * 40}" for number in range(8)]
    hub.put(NAME, {"data/0.parquet": parquet(*texts)})
    command = [sys.executable, "-m", "flows.dataprep", "--output", str(tmp_path / "out"), "--workers", "1", "--dry-run"]
    command += ["--documents", f"hf://{NAME}/data/*.parquet"]
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and any("/data/0.parquet" in call for call in hub.calls), done.stderr
    hub.calls.clear()
    done = subprocess.run(command, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 2 and "is on the hub, but HF_HUB_OFFLINE is set" in done.stderr and not hub.calls
