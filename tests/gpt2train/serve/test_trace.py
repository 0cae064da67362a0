"""`/v1/trace` of a real server: spans of a text in the training tokens, and the places they come from."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.store.removal import FORGOTTEN, PENDING
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.gpt2train.serve.local_server import Running, running
from tests.gpt2train.serve.test_chat import check
from tests.tasks.corpus import row

pytest.importorskip("pydivsufsort", reason="needs the extra trace")

TEXTS = [f"Page {n}: the river Łyna 🏞 rises at mile {n * 7} and runs north." for n in range(30)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_indexed(tmp_path_factory.mktemp("traced"), [row(text) | {"date": "2020-02-03"} for text in TEXTS])


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    with running(trace=root) as one:
        yield one


def get(server: Running, path: str, **query: object) -> Any:
    response = server.client.get(path, params=query)
    check(dict(server.client.get("/openapi.json").json()), response)
    return response


def test_spans_lead_to_their_places(server: Running, root: Path) -> None:
    text = f"Nobody wrote this. 🙂 {TEXTS[4][8:40]} Nor that."
    found = get(server, "/v1/trace", text=text).json()
    [span] = [span for span in found["spans"] if "rises" in span["text"]]
    start, end = span["characters"]
    assert text[start:end] == span["text"] and TEXTS[4][10:38] in span["text"]
    assert found["indexed_tokens"] == server.client.get("/v1/models").json()["data"][0]["indexed_tokens"] > 500
    of_four = [place for place in span["places"] if place["url"]]
    place = of_four[0]
    query = {"corpus": place["corpus"], "position": place["position"], "tokens": span["end"] - span["start"]}
    details = get(server, "/v1/trace/place", **query).json()
    assert details["text"] == span["text"]
    assert details["before"] + details["text"] + details["after"] in (*TEXTS, *(one + "<|endoftext|>" for one in TEXTS))
    assert details["place"]["url"] == place["url"]
    assert details["record"]["date"] == "2020-02-03"
    assert [step["step"] for step in details["record"]["steps"]][-1] == "shuffled"
    assert str(root) not in str(found) + str(details)  # no path of the server


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/v1/trace", {}, "text"),
        ("/v1/trace", {"text": "a", "min_tokens": 1}, "min_tokens"),
        ("/v1/trace", {"text": "a", "places": "x"}, "places"),
        ("/v1/trace", {"text": "a", "place": 3}, "place"),
        ("/v1/trace", {"text": "a" * 40_000}, "text"),
        ("/v1/trace/place", {"corpus": 0}, "position"),
        ("/v1/trace/place", {"corpus": 1, "position": 0}, None),
        ("/v1/trace/place", {"corpus": 0, "position": 10**9}, None),
    ],
)
def test_bad_queries_are_refused(server: Running, path: str, query: dict[str, object], field: str | None) -> None:
    response = get(server, path, **query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_a_server_does_not_answer_from_tokens_of_removed_pages(root: Path, tmp_path: Path) -> None:
    """The index stays open, whatever becomes of its files."""
    shutil.copytree(root, copy := tmp_path / "out")
    with running(trace=copy) as server:
        assert get(server, "/v1/trace", text=TEXTS[4]).json()["spans"]
        (copy / PENDING).write_text("{}")
        response = get(server, "/v1/trace", text=TEXTS[4])
        assert response.status_code == 503 and "a removal of pages was interrupted" in response.text
        (copy / PENDING).unlink()
        (copy / FORGOTTEN).write_text("{}")
        for path, query in (("/v1/trace", {"text": TEXTS[4]}), ("/v1/trace/place", {"corpus": 0, "position": 9})):
            response = get(server, path, **query)
            assert response.status_code == 503 and "then start the server" in response.text


def test_a_server_without_an_index(tmp_path: Path) -> None:
    with running() as server:
        assert server.client.get("/v1/trace", params={"text": "a"}).status_code == 404
        assert server.client.get("/v1/models").json()["data"][0]["indexed_tokens"] is None
        assert "/v1/trace" not in server.client.get("/openapi.json").json()["paths"]
    with pytest.raises(UserError, match="is no run folder"), running(trace=tmp_path):
        pass
