"""The labelling page: documents, votes, who may see them; and the page in a browser."""

import contextlib
import http.client
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpt2train.errors import UserError
from gpt2train.quality.documents import Document, sample_documents
from gpt2train.quality.model_file import from_bytes
from gpt2train.quality.session import Session
from gpt2train.quality.votes import VoteFile, read_votes
from gpt2train.serve.local_page import LIMITS, LocalPageServer, Routes
from tasks.outputs.browse.server import label_routes
from tests.chromium import chromium, until
from tests.gpt2train.quality.labelled_texts import cleaned, planted, votes_on


class Client:
    def __init__(self, server: LocalPageServer) -> None:
        parts = urlsplit(server.url)
        self.port, self.path, self.server = parts.port, parts.path, server

    def __call__(
        self, name: str, body: Any = None, *, path: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, Message]:
        """Status, content and headers of an answer; a POST if there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", (path or self.path) + name, data, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        kind = response.getheader("Content-Type")
        return response.status, json.loads(content) if kind == "application/json" else content, response.headers


@contextlib.contextmanager
def served(server: LocalPageServer) -> Iterator[Client]:
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Client(server)
        finally:
            server.http.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def output(open_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [text for text, is_good in planted(open_data, 25) if is_good]
    bad = [text[:400] for text, is_good in planted(open_data, 25) if not is_good]
    texts += [("\n" if number % 2 else " ").join(text.split()) for number, text in enumerate(bad)]
    return cleaned(tmp_path_factory.mktemp("out"), texts)


@pytest.fixture
def client(output: Path, tmp_path: Path) -> Iterator[Client]:
    session = Session(*sample_documents(output), VoteFile(tmp_path / "votes.jsonl"), tmp_path / "model")
    with served(LocalPageServer(label_routes(session))) as client:
        yield client


def test_documents_come_whole_in_a_seeded_order(output: Path) -> None:
    kept, rejected = sample_documents(output)
    assert len(kept) + len(rejected) == 50 and min(len(kept), len(rejected)) >= 20
    assert {document.reason for document in kept} == {None}
    assert {document.reason for document in rejected} == {"too_short", "fineweb_few_ended_lines"}
    assert rejected[0].reason != rejected[1].reason  # the reasons take turns
    assert all(len(document.text) > 300 for document in rejected)  # clean/rejected has 300 characters
    assert (kept, rejected) == sample_documents(output) != sample_documents(output, seed=1)


def test_votes_are_on_disk_at_once_and_the_next_documents_come(client: Client, tmp_path: Path) -> None:
    status, state, _ = client("state")
    kept, rejected = state["next"]["kept"], state["next"]["rejected"]
    assert status == 200 and (state["good"], state["bad"], state["needed"]) == (0, 0, 200)
    assert rejected["reason"] and "expected" in rejected["detail"]
    _, state, _ = client("vote", {"id": kept["id"], "vote": "good"})
    assert state["next"]["kept"]["id"] != kept["id"] and state["next"]["rejected"] == rejected
    _, state, _ = client("vote", {"id": rejected["id"], "vote": "bad"})
    assert (state["good"], state["bad"]) == (1, 1)
    found = read_votes([tmp_path / "votes.jsonl"])
    assert [(vote.id, vote.vote, vote.reason) for vote in found] == [
        (kept["id"], "good", None),
        (rejected["id"], "bad", rejected["reason"]),
    ]
    assert found[1].text == rejected["text"]
    _, state, _ = client("vote", {"id": rejected["id"], "vote": None})
    assert state["next"]["rejected"] == rejected and state["bad"] == 0
    _, state, _ = client("vote", {"id": rejected["id"], "vote": "skip"})
    assert state["next"]["rejected"]["id"] != rejected["id"] and state["bad"] == 0
    status, answer, _ = client("train", {"precision": 0.9})
    assert (status, answer) == (400, {"error": "1 vote: too few; give at least 200"})


def test_wrong_requests_are_refused_in_one_line(client: Client, tmp_path: Path) -> None:
    votes: list[Any] = [{"id": "0000", "vote": "great"}, {"id": "none", "vote": "good"}, {"id": ["a"], "vote": {}}]
    votes += [b"no json", b"[" * 50_000, b"[]", b'"' + b"x" * (1 << 17) + b'"']
    wrong = {"vote": votes, "train": [{}, {"precision": []}, {"precision": 7}]}
    for name, body in ((name, body) for name, bodies in wrong.items() for body in bodies):
        status, answer, _ = client(name, body)
        assert status == 400 and "\n" not in answer["error"], (name, body)
        assert read_votes([tmp_path / "votes.jsonl"]) == []


def test_only_who_has_the_token_sees_anything(client: Client) -> None:
    for path in ("/", "/state", "/vote", f"{client.path[:-2]}/", "//", client.path.upper()):
        assert client("", path=path)[0] == client("", {}, path=path)[0] == 404
    assert client("state", headers={"Host": "evil.example"})[0] == 404  # DNS rebinding
    assert client("state", headers={"Host": f"localhost:{client.port}"})[0] == 200
    assert client("../../../etc/passwd")[0] == client("__init__.py")[0] == 404
    assert client.server.listener.getsockname()[0] == "127.0.0.1"


def test_silent_connections_do_not_lock_the_page(client: Client) -> None:
    """As another user of the machine may open them."""
    silent = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(LIMITS.max_connections + 6)]
    assert client("state")[0] == 200
    assert [one.recv(1) for one in silent[:6]] == [b""] * 6
    silent[-1].settimeout(0.05)
    with pytest.raises(TimeoutError):
        silent[-1].recv(1)
    for one in silent:
        one.close()


def test_the_page_loads_its_own_files_alone(client: Client) -> None:
    status, page, headers = client("")
    assert status == 200 and headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert headers["Referrer-Policy"] == "no-referrer" and "Server" not in headers
    assert page.count(b"<script") == page.count(b"<script src=") and b"http" not in page
    assert client("base.css")[0] == client("style.css")[0] == 200
    for script in ("base.js", "script.js"):
        status, content, _ = client(script)
        assert status == 200 and b"innerHTML" not in content


def test_damaged_documents_are_named(tmp_path: Path, output: Path) -> None:
    shutil.copytree(output, tmp_path / "out")
    (tmp_path / "out/documents/part-00000.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(UserError, match="documents cannot be read; run the data flow again to restore it"):
        sample_documents(tmp_path / "out")


def test_a_folder_without_a_cleaning_is_named(tmp_path: Path, output: Path) -> None:
    with pytest.raises(UserError, match="clean holds no finished step clean; give the output folder of a data flow"):
        sample_documents(tmp_path)
    refused = r"cannot listen at 127\.0\.0\.1:\d+: .*; give another --port, 0 takes a free"
    with LocalPageServer(Routes("")) as server, pytest.raises(UserError, match=refused):
        LocalPageServer(Routes(""), server.port)


HOSTILE = "</div><script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\">"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path) as driver:
        yield driver


@pytest.fixture
def server(open_data: Path, tmp_path: Path) -> Iterator[LocalPageServer]:
    """A session with 198 votes that a person gave before, and two documents on each side."""
    file = VoteFile(tmp_path / "votes.jsonl")
    for vote in votes_on(planted(open_data, 99)):
        file.add(vote)
    kept = [Document("k1", "http://a.example/k", HOSTILE, None, ""), Document("k2", "", "Kept.", None, "")]
    rejected = [Document(f"r{n}", "", f"Rejected {n}.", "few_words", "3, at least 5 expected") for n in (1, 2)]
    with served(server := LocalPageServer(label_routes(Session(kept, rejected, file, tmp_path / "model")))):
        yield server


@pytest.mark.slow
def test_keys_vote_and_a_model_is_trained(browser: Any, server: LocalPageServer, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    def text(selector: str) -> str:
        return str(browser.find_element(By.CSS_SELECTOR, selector).text)

    def press(key: str, count: int) -> None:
        browser.find_element(By.TAG_NAME, "body").send_keys(key)
        until(lambda: text("#count") == str(count))

    browser.get(server.url)
    until(lambda: text("#count") == "198")
    assert text("article.active .badge") == "kept" and text("[data-side=kept] .text") == HOSTILE
    assert text("[data-side=rejected] .detail") == "few_words: 3, at least 5 expected"
    train = browser.find_element(By.ID, "train")
    assert not train.is_enabled()
    press("b", 199)
    assert text("[data-side=kept] .text") == "Kept." and text("article.active .badge") == "rejected"
    press("g", 200)
    assert text("[data-side=rejected] .text") == "Rejected 2." and text("article.active .badge") == "kept"
    press("u", 199)
    assert text("[data-side=rejected] .text") == "Rejected 1." and not train.is_enabled()
    press("b", 200)
    assert [vote.vote for vote in read_votes([tmp_path / "votes.jsonl"])[-2:]] == ["bad", "bad"]

    train.click()
    until(lambda: browser.find_element(By.ID, "result").is_displayed())
    model = from_bytes((tmp_path / "model").read_bytes(), "model")
    assert text("#auc").startswith(f"{model.about['auc']:.3f} ± ") and text("#threshold") == f"{model.threshold:.4f}"
    assert text("#use") == f"--clean.filters.quality.model {tmp_path / 'model'}"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curve polyline")) == 2
    field = browser.find_element(By.ID, "precision")
    field.clear()
    field.send_keys("g")  # typed into a field, it is no vote
    assert text("#count") == "200"
    train.click()
    until(lambda: text("#error") != "")
    assert browser.title.startswith("Quality votes") and "NaN" not in browser.page_source
    errors = [entry for entry in browser.get_log("browser") if "400" not in entry["message"]]
    assert errors == []
