"""Adversarial request bodies: no status above 499, and no expensive work for refused requests."""

import json
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from gpt2train.data.token_bytes import longest_token
from gpt2train.data.tokenizer import build_tokenizer, encode_ordinary
from tests.gpt2train.serve.local_server import LETTERS, SHAPE, Running, tokenizer

JSON = {"Content-Type": "application/json"}
COMPLETION = {"prompt": "a", "max_tokens": 1, "model": "small", "stop": "b", "suffix": "", "user": "c"}
API = {"prompts": ["a"], "tokens_to_generate": 1}


def post(server: Running, path: str, body: object) -> Any:
    """Sent as JSON, with lone surrogates as `\\ud800`."""
    return server.client.post(path, content=json.dumps(body), headers=JSON)


@pytest.mark.parametrize(
    "where", [lambda half: half, lambda half: f"a{half}b", lambda half: [half], lambda half: {half: 1}]
)
def test_lone_surrogates_are_refused_anywhere(server: Running, where: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In each field of each body: as a value, in a list, as a key, and as the name of a field."""
    caplog.set_level(logging.DEBUG)
    bodies = [("/v1/completions", COMPLETION, field) for field in [*COMPLETION, "stream_options", "logit_bias", "seed"]]
    bodies += [("/api", API, field) for field in [*API, "stop_token", "random_seed"]]
    for half in ("\ud800", "\udfff"):
        for path, body, field in bodies:
            for sent in (body | {field: where(half)}, body | {f"{field}{half}": 1}):
                answer = post(server, path, sent)
                assert answer.status_code in (400, 404), (path, sent, answer.text)
                assert answer.json()
    assert "Traceback" not in caplog.text and "surrogate" not in caplog.text


TEXTS = st.text(st.characters() | st.sampled_from("\ud800\udbff\udc00\udfff\x00\u2028"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_in_any_field_is_answered(server: Running, data: st.DataObject) -> None:
    path, body = data.draw(st.sampled_from([("/v1/completions", COMPLETION), ("/api", API)]))
    properties = server.client.get("/openapi.json").json()["components"]["schemas"]
    names = properties["CompletionRequest" if path != "/api" else "ApiRequest"]["properties"]
    more = data.draw(st.dictionaries(st.sampled_from(sorted(names)) | TEXTS, VALUES, max_size=3))
    answer = post(server, path, body | more)
    assert answer.status_code < 500, (path, body | more, answer.text)
    assert answer.status_code == 200 or answer.json()


TINY = (5e-324, 1e-45, 1e-40, 1e-38)  # float64 and float32 round them differently, or divide to infinity
EXTREME = (*TINY, -0.0, 1 - 2**-53, 1e308, float("inf"), float("nan"), 2**31, 2**63, -(2**63), 10**400)


def numeric_values(schema: dict[str, Any], others: tuple[float, ...]) -> list[float]:
    """Bounds of a numeric field, the numbers next to them, and others; none for a field of another kind."""
    kinds = {kind.get("type"): kind for kind in schema.get("anyOf", [schema])}
    if not (kind := kinds.get("number", kinds.get("integer"))):
        return []
    bounds = [value for name, value in kind.items() if "imum" in name.lower()]
    if kind["type"] == "integer":
        return [*bounds, *(bound + 1 for bound in bounds), *others[len(TINY) :]]
    return [*bounds, *(math.nextafter(bound, 0.5) for bound in bounds), *others]


@pytest.mark.parametrize("others", [TINY, pytest.param(EXTREME, marks=pytest.mark.exhaustive)], ids=["tiny", "extreme"])
def test_any_number_in_a_numeric_field_is_answered_beside_others(server: Running, others: tuple[float, ...]) -> None:
    schemas = server.client.get("/openapi.json").json()["components"]["schemas"]
    steady = {"prompt": "b", "max_tokens": 40, "seed": 5, "logprobs": 1}
    expected = post(server, "/v1/completions", steady).json()["choices"][0]["text"]
    bodies = [
        ("/v1/completions", COMPLETION | {"stop": None, "logprobs": 1} | more | {field: value}, field)
        for field, schema in schemas["CompletionRequest"]["properties"].items()
        for more in ({"temperature": 1e-40, "top_p": 0.9}, {"echo": True})
        for value in numeric_values(schema, others)
    ]
    bodies += [
        ("/api", API | {"logprobs": True} | more | {field: value}, field)
        for field, schema in schemas["ApiRequest"]["properties"].items()
        for more in ({"temperature": 1e-40, "top_p": 0.9, "top_p_decay": 1e-300}, {"beam_width": 3})
        for value in numeric_values(schema, others)
    ]
    assert {"temperature", "top_p_decay", "length_penalty", "seed"} <= {field for *_, field in bodies}
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda body: post(server, *body[:2]), bodies)
        seen = [post(server, "/v1/completions", steady) for _ in range(3)]
        statuses = [answer.status_code for answer in answers]
    for body, code in zip(bodies, statuses, strict=True):
        assert code in (200, 400), (code, body)
    assert statuses.count(200) > len(bodies) / 4
    assert [answer.json()["choices"][0]["text"] for answer in seen] == [expected] * 3
    assert server.client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("temperature", TINY)
def test_the_smallest_temperatures_give_the_most_likely_tokens(server: Running, temperature: float) -> None:
    asked = {"prompt": "river", "max_tokens": 12, "logprobs": 2, "temperature": 0}
    greedy = post(server, "/v1/completions", asked).json()
    tiny = post(server, "/v1/completions", asked | {"temperature": temperature}).json()
    assert tiny["choices"] == greedy["choices"] and tiny["choices"][0]["text"]
    api = {"prompts": ["river"], "tokens_to_generate": 12, "temperature": temperature}
    assert post(server, "/api", api).json()["text"] == ["river" + greedy["choices"][0]["text"]]


@pytest.mark.parametrize("path", ["/v1/completions", "/api"])
def test_a_text_that_cannot_fit_is_not_tokenised(server: Running, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def encode(own: Tokenizer, texts: list[str]) -> list[list[int]]:
        seen.append(sum(map(len, texts)))
        return encode_ordinary(own, texts)

    monkeypatch.setattr("gpt2train.serve.service.encode_ordinary", encode)
    name = "prompts" if path == "/api" else "prompt"
    for text in ("x" * 4_000_000, "\u20ac" * (SHAPE.context // 3 + 1)):
        answer = post(server, path, {name: [text]})
        assert answer.status_code == 400
        assert name in answer.text and "context" in answer.text
    assert seen == []
    within = {"max_tokens": 1} if path != "/api" else {"tokens_to_generate": 1}
    assert post(server, path, {name: ["x" * (SHAPE.context - 1)], **within}).status_code == 200
    exact = post(server, path, {name: ["x" * SHAPE.context], **within})
    assert exact.status_code == 400 and f"{SHAPE.context} tokens" in exact.text
    assert seen == [SHAPE.context - 1, SHAPE.context]


def test_texts_are_tokenised_until_one_does_not_fit(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens of up to 40 bytes: 5,000 letters fit by their count and not by their tokens."""
    merges = [("a" * 2**i, "a" * 2**i) for i in range(5)] + [("a" * 32, "a" * 8)]
    vocab = LETTERS | {"".join(pair): 257 + i for i, pair in enumerate(merges)}
    long_tokens = build_tokenizer(vocab, merges)
    assert longest_token(long_tokens) == 40
    seen: list[int] = []

    def encode(own: Tokenizer, texts: list[str]) -> list[list[int]]:
        seen.append(len(texts))
        return encode_ordinary(long_tokens, texts)

    monkeypatch.setattr("gpt2train.serve.service.encode_ordinary", encode)
    monkeypatch.setitem(server.server.service.__dict__, "longest_text", 40 * SHAPE.context)
    answer = post(server, "/v1/completions", {"prompt": ["b" * 5000] * 10, "max_tokens": 1})
    assert answer.status_code == 400 and "the prompt has 5000" in answer.text
    assert seen == [1]


def test_the_longest_token_is_known_or_none() -> None:
    assert longest_token(tokenizer()) == 1  # `<|endoftext|>` is never made of text
    lowering = tokenizer()
    lowering.normalizer = normalizers.NFC()
    assert longest_token(lowering) is None
    assert longest_token(build_tokenizer({"a": 0, "<|endoftext|>": 1}, [])) is None  # other letters are dropped


@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_no_text_has_fewer_tokens_than_the_bound(text: str) -> None:
    own = tokenizer()
    bound = longest_token(own)
    assert bound and len(encode_ordinary(own, [text])[0]) * bound >= len(text.encode())


def test_millions_of_ids_are_refused_in_time(server: Running) -> None:
    """8 MiB of them; other requests wait meanwhile."""
    began = time.process_time()
    answer = server.client.post("/v1/completions", content=b'{"prompt":[' + b"0," * 4_000_000 + b"0]}", headers=JSON)
    assert answer.status_code == 400 and "context" in answer.text
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"prompt": "a",\n "max_tokens": 3,,}', "line 2, column 18"),
        (b'{\n\n"prompt": "\xe2\x82\xac" x}', "line 3, column 15"),
        (b"[]", " "),
        (b"null", " "),
        (b"", "application/json"),
        (b"{", "line 1, column 2"),
        (b'{"prompt": "a"} []', "line 1, column 17"),
        (b'{"prompt": "a\nb"}', "line 1, column 14"),
        (b'{"prompt": "\xff"}', "byte 12 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompts": [' + b"9" * 5000 + b"]}", "too many digits"),
        (b'{"prompts": ["a", 1], "prompt": ["a", 1]}', "1"),
        (b'{"prompt": [[1], ["a"]], "prompts": ["a", null]}', "1"),
        (b'{"prompt": [1, "a"], "prompts": [{}]}', "item 1|prompts[0]"),
    ],
)
def test_an_error_names_the_field(server: Running, body: bytes, field: str) -> None:
    for path in ("/v1/completions", "/api"):
        answer = server.client.post(path, content=body, headers=JSON)
        message = answer.json()["error"]["message"] if path != "/api" else answer.json()["message"]
        assert answer.status_code == 400
        assert any(one in message for one in field.split("|")), message


def test_an_error_names_the_full_path_of_a_field(server: Running) -> None:
    sent = {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}}
    error = post(server, "/v1/completions", sent).json()["error"]
    assert error["param"] == "stream_options" and error["message"].startswith("stream_options.include_usage: ")
    assert post(server, "/api", {"prompts": ["a", 5]}).json()["message"].startswith("prompts[1]: ")


def test_a_failure_is_logged_without_the_request(
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ValueError(" ".join(["somebody's", "prompt"]))

    monkeypatch.setattr("gpt2train.serve.openai.sampling_jobs", fail)
    answer = post(server, "/v1/completions", COMPLETION)
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    logged = caplog.text + "".join(capfd.readouterr())
    assert "ValueError" in logged and "in completions" in logged
    assert "somebody's prompt" not in logged + answer.text
