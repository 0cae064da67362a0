"""Megatron-LM's /api, its fields, limits and answers; and adversarial bodies of all requests: no status above 499."""

import gzip
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
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.models import generate_tokens
from tests.gpt2train.serve.local_server import LETTERS, SHAPE, Running, running, small_model, tokenizer

END = "<|endoftext|>"


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_an_answer_has_text_segments_and_log_probabilities(server: Running, method: str) -> None:
    body = {"prompts": ["Hello", "A"], "tokens_to_generate": 5, "top_k": 1, "logprobs": True}
    answer = server.client.request(method, "/api", json=body).json()
    assert set(answer) == {"text", "segments", "logprobs"}
    for prompt, text, segments, scores in zip(body["prompts"], *answer.values(), strict=True):
        ids = tokenizer().encode(prompt).ids
        made = generate_tokens(small_model(), [ids], 256, SamplingSettings(temperature=0, max_new_tokens=5))[0]
        everything = [*ids, *made]
        assert text == tokenizer().decode(everything, skip_special_tokens=False)
        assert len(segments) == len(everything)
        assert segments[: len(prompt)] == list(prompt)
        logits = LocalDecoder(small_model(), 1).logits(everything).log_softmax(1)
        expected = [float(logits[i, token]) for i, token in enumerate(everything[1:])]
        assert scores == pytest.approx(expected, abs=1e-4)


def test_prompts_are_scored_without_generation(server: Running) -> None:
    body = {"prompts": ["Hello", ""], "tokens_to_generate": 0, "logprobs": True, "add_BOS": True}
    answer = server.client.put("/api", json=body).json()
    assert answer["text"] == [END + "Hello", END]
    assert [len(scores) for scores in answer["logprobs"]] == [5, 0]
    assert answer["segments"] == [[END, *"Hello"], [END]]
    assert server.client.put("/api", json={"prompts": ["a"], "tokens_to_generate": 2}).json()["logprobs"] is None


def test_seeds_and_server_defaults_apply(server: Running) -> None:
    body = {"prompts": ["Hello"], "tokens_to_generate": 30}

    def text(**more: Any) -> str:
        return str(server.client.put("/api", json=body | more).json()["text"][0])

    assert text(random_seed=3) == text(random_seed=3) != text(random_seed=4)
    assert text() != text()
    with running(settings=ServeSettings(top_k=1, tokens_to_generate=7)) as other:
        answer = other.client.put("/api", json={"prompts": ["Hello"]}).json()
        assert len(answer["segments"][0]) == 5 + 7
        assert answer["text"][0] == text(top_k=1)[:12]
        drawn = [other.client.put("/api", json={"prompts": ["Hello"], "top_p": 1.0}).json()["text"] for _ in range(2)]
        assert drawn[0] != drawn[1]  # top_p asked for is not joined to the server's top_k


def test_generation_stops_at_line_ends_if_asked(server: Running) -> None:
    """The model's likeliest token by far is a newline, after a colon too."""
    model = small_model()
    newline, colon = (tokenizer().encode(letter).ids[0] for letter in "\n:")
    model.wte.weight[newline] = 3 * model.ln_f.bias.sign()
    model.ln_f.weight.zero_()
    with running(LocalDecoder(model, 4)) as other:
        body = {"prompts": ["Hello:"], "tokens_to_generate": 6, "top_k": 1}

        def text(**more: Any) -> str:
            return str(other.client.put("/api", json=body | more).json()["text"][0]).removeprefix("Hello:")

        assert text() == "\n" * 6
        assert text(stop_on_eol=True) == "\n"
        assert text(stop_on_double_eol=True) == "\n\n"
        assert text(prevent_newline_after_colon=True)[0] != "\n"
        assert text(prevent_newline_after_colon=True)[1:] == "\n" * 5
    assert colon != newline


def test_beams_are_returned_with_scores(server: Running) -> None:
    """While others are served."""
    prompt = tokenizer().encode("Hello").ids
    body = {"prompts": ["Hello"], "tokens_to_generate": 9}
    shorter = {"beam_width": 3, "length_penalty": 0.5, "stop_token": 70}
    for more, wanted, end in (
        ({"beam_width": 4}, BeamSettings(beams=4, max_new_tokens=9), 256),
        (shorter, BeamSettings(beams=3, length_penalty=0.5, max_new_tokens=9), 70),
    ):
        expected = beam_search(LocalDecoder(small_model(), 4), prompt, wanted, tokenizer(), end)
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(server.client.put, "/api", json=body | {"random_seed": i}) for i in range(3)]
            answer = pool.submit(server.client.put, "/api", json=body | more).result().json()
            assert [other.result().status_code for other in others] == [200] * 3
        assert set(answer) == {"text", "segments", "scores"}
        texts = [tokenizer().decode([*prompt, *beam.tokens], skip_special_tokens=False) for beam in expected]
        assert answer["text"] == texts
        assert answer["scores"] == pytest.approx([beam.score for beam in expected], abs=1e-4)
        assert answer["scores"] == sorted(answer["scores"], reverse=True)
    assert server.client.put("/api", json=body | {"beam_width": 100}).status_code == 400


WRONG: dict[str, list[Any]] = {
    "prompts": ["a", [], ["a"] * 129, [1], ["a" * 100] * 120],
    "tokens_to_generate": [-1, True, 0, 1000],
    "temperature": [0, 100.5, True],
    "top_k": [1001, 1.5, True],
    "top_p": [1.1],
    "top_p_decay": [0.5],
    "top_p_bound": [0.5],
    "random_seed": [-1, True],
    "beam_width": [0],
    "logprobs": [1],
    "add_BOS": [1],
    "stop_on_eol": ["yes"],
    "stop_on_double_eol": [None],
    "prevent_newline_after_colon": [0],
    "no_log": [1],
    "sentences": [["a"]],
    "max_len": [4],
    "wrong": [1],
}
WRONG_TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("add_BOS", {"prompts": [""]}),
    ("top_p", {"top_p": 0.5, "top_k": 2}),
    ("top_p_bound", {"top_p": 0.5, "top_p_bound": 0.6}),
    ("beam_width", {"beam_width": 2, "prompts": ["a", "b"]}),
    ("stop_token", {"beam_width": 2, "stop_token": 1.5}),
    ("length_penalty", {"beam_width": 2, "length_penalty": "1"}),
]


def test_wrong_requests_are_refused_with_the_field(server: Running) -> None:
    cases = [(field, {field: value}) for field, values in WRONG.items() for value in values]
    for field, more in [*cases, *WRONG_TOGETHER]:
        body = {"prompts": ["a"], "tokens_to_generate": 20} | more
        answer = server.client.put("/api", content=json.dumps(body), headers={"Content-Type": "application/json"})
        assert (answer.status_code, list(answer.json())) == (400, ["message"]), more
        assert field in answer.json()["message"], more


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
    for scores in (101, -1, "2", 2.5):  # of a field with several types: no name of a type
        error = post(server, "/v1/completions", {"prompt": "a", "logprobs": scores}).json()["error"]
        assert error["param"] == "logprobs" and error["message"].startswith("logprobs: input should be ")


@pytest.mark.parametrize("path", ["/v1/completions", "/api"])
def test_a_compressed_body_is_refused_by_its_header(server: Running, path: str) -> None:
    body = gzip.compress(json.dumps(COMPLETION).encode())
    answer = server.client.post(path, content=body, headers=JSON | {"Content-Encoding": "gzip"})
    assert answer.status_code == 415 and "Content-Encoding" in answer.text
    content = json.dumps(COMPLETION if path != "/api" else {"prompts": ["a"], "tokens_to_generate": 1})
    same = server.client.post(path, content=content, headers=JSON | {"Content-Encoding": "identity"})
    assert same.status_code == 200


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
