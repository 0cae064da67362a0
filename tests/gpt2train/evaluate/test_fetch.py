"""Data of tasks that are fetched by name: asked for, bounded, checked by hash, from a server on loopback."""

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.evaluate.tasks import fetch
from gpt2train.evaluate.tasks.description import Task, read_description, ready_files
from gpt2train.evaluate.tasks.suite import Work, read_work

ROWS = "".join(
    json.dumps({"query": f"{n} is", "choices": ["a number", "a horse"], "gold": n % 2}) + "\n" for n in range(8)
).encode()


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/items.jsonl": ROWS}
        self.asked: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                return
        if self.path in ("/moved", "/to-ftp", "/loop"):
            self.send_response(302)
            target = {"/moved": "/items.jsonl", "/to-ftp": "ftp://127.0.0.1/x", "/loop": "/loop"}[self.path]
            self.send_header("Location", target)
            self.end_headers()
            return
        content = self.server.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"") + (5 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def describe(folder: Path, server: Server, path: str = "/items.jsonl", *lines: str, name: str = "mine") -> str:
    """Write a description whose data are at a path of the server."""
    file = folder / f"{name}.toml"
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    head = ('kind = "multiple_choice"', 'data = ["**/deep/items.jsonl"]', f'url = "{url}"')
    file.write_text("\n".join([*head, *lines]) + "\n")
    return str(file)


def fetched(name: str, folder: Path) -> tuple[Work, list[str]]:
    lines: list[str] = []
    return read_work(name, folder, fetched=lines.append), lines


def test_data_are_fetched_once_and_only_when_asked_for(server: Server, tmp_path: Path) -> None:
    """The hash of the first fetch is kept, and an edit of a fetched file is found with and without a fetch."""
    name, data = describe(tmp_path, server, "/moved"), tmp_path / "data"
    data.mkdir()
    with pytest.raises(UserError, match="put the data there"):
        read_work(name, data)
    assert server.asked == []
    work, [line] = fetched(name, data)
    digest = hashlib.sha256(ROWS).hexdigest()
    assert len(work.parts[0].items) == 8 and digest in line and server.asked == ["/moved", "/items.jsonl"]
    assert json.loads((data / "fetched.json").read_bytes())["deep/items.jsonl"]["sha256"] == digest
    assert fetched(name, data) == (work, []) == (read_work(name, data), [])
    assert len(server.asked) == 2
    (data / "deep/items.jsonl").write_bytes(ROWS[: ROWS.index(b"\n") + 1])
    for call in (fetched, read_work):
        with pytest.raises(UserError, match=r"items\.jsonl has changed since it was fetched"):
            call(name, data)
    (data / "deep/items.jsonl").unlink()
    server.files["/items.jsonl"] = ROWS[1:]
    with pytest.raises(UserError, match="has changed since the first fetch"):
        fetched(name, data)


def test_a_hash_of_the_description_is_checked(server: Server, tmp_path: Path) -> None:
    good = describe(tmp_path, server, "/items.jsonl", f'sha256 = "{hashlib.sha256(ROWS).hexdigest()}"')
    assert len(fetched(good, tmp_path / "a")[1]) == 1
    bad = describe(tmp_path, server, "/items.jsonl", f'sha256 = "{"0" * 64}"')
    with pytest.raises(UserError, match="has another file, sha256"):
        fetched(bad, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    with pytest.raises(UserError, match="sha256"):
        read_description(describe(tmp_path, server, "/items.jsonl", 'sha256 = "abc"'))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/endless", "has more than 1,000,000 bytes"),
        ("/absent", "cannot fetch .*404"),
        ("/to-ftp", "redirect to another scheme"),
        ("/loop", "cannot fetch"),
        ("/short", "gave 3 bytes of 8|IncompleteRead"),
        ("/empty", "gave 0 bytes"),
        ("", "cannot fetch"),  # no server
    ],
)
def test_hostile_answers_are_one_line_and_leave_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.setattr(fetch, "MAX_BYTES", 1_000_000)
    server.files |= {"/short": b"abc", "/empty": b""}
    if not path:
        server.server_close()
    with pytest.raises(UserError, match=message) as caught:
        fetched(describe(tmp_path, server, path), tmp_path / "data")
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("data/**/*.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('url = "http', 'url = "file'), "is no http or https address"),
        (("**/deep/items.jsonl", "../items.jsonl"), "is no name for a fetched file"),
        (("**/deep/items.jsonl", "*.jsonl"), "is no name for a fetched file"),
        (("**/deep/items.jsonl", "/items.jsonl"), "is no name for a fetched file"),
        (("url = ", "about = "), "has no url to fetch"),
    ],
)
def test_descriptions_that_name_no_file_are_refused(
    server: Server, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    name = describe(tmp_path, server)
    Path(name).write_text(Path(name).read_text().replace(*change))
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=message):
        fetched(name, tmp_path / "data")
    assert server.asked == []


def test_addresses_of_the_package_are_https_and_name_the_first_file() -> None:
    """Those of a repository name a commit, so that their content is fixed."""
    for name in ready_files():
        _, description = read_description(name)
        for task in getattr(description, "tasks", {name: description}).values():
            if task.url:
                assert task.url.startswith("https://") and "*" not in task.data[0].removeprefix("**/")
                assert "llm-foundry" not in task.url or re.search("/[0-9a-f]{40}/", task.url)


def test_hashes_of_ready_descriptions_are_those_of_the_files(real_data: Path) -> None:
    """The test data have the published file under the path of its address, of others in another folder."""
    roots = {"local_data": "eval/core", "xcopa": "eval/zh/xcopa", "gpt-2": "lambada", "blimp": "eval/blimp"}
    checked = set()
    for name in ready_files():
        _, description = read_description(name)
        for task in [description] if isinstance(description, Task) else description.tasks.values():
            if task.sha256:
                [root] = [part for part in roots if f"/{part}/" in task.url]
                path = task.url.split("/local_data/")[-1] if root == "local_data" else task.url.split("/")[-1]
                content = (real_data / roots[root] / path).read_bytes()
                assert hashlib.sha256(content).hexdigest() == task.sha256, task.url
                checked.add(task.url)
    assert len(checked) == 11
