"""Megatron-LM's /api: its fields, limits and answers; wrong input is a 400 with a message."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.models import generate_tokens
from tests.gpt2train.serve.local_server import Running, running, small_model, tokenizer

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


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
    for more, settings, end in (
        ({"beam_width": 4}, BeamSettings(beams=4, max_new_tokens=9), 256),
        (
            {"beam_width": 3, "length_penalty": 0.5, "stop_token": 70},
            BeamSettings(beams=3, length_penalty=0.5, max_new_tokens=9),
            70,
        ),
    ):
        expected = beam_search(LocalDecoder(small_model(), 4), prompt, settings, tokenizer(), end)
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


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"prompts": "a"}, "prompts"),
        ({"prompts": []}, "prompts"),
        ({"prompts": ["a"] * 129}, "prompts"),
        ({"prompts": [1]}, "prompts"),
        ({"prompts": [""]}, "add_BOS"),
        ({"prompts": ["a" * 100] * 120}, "prompts"),
        ({"sentences": ["a"]}, "sentences"),
        ({"max_len": 4}, "max_len"),
        ({"tokens_to_generate": -1}, "tokens_to_generate"),
        ({"tokens_to_generate": True}, "tokens_to_generate"),
        ({"tokens_to_generate": 0}, "tokens_to_generate"),
        ({"tokens_to_generate": 1000}, "tokens_to_generate"),
        ({"logprobs": 1}, "logprobs"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": 100.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": 1001}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": 0.5, "top_k": 2}, "top_p"),
        ({"top_p_decay": 0.5}, "top_p_decay"),
        ({"top_p_bound": 0.5}, "top_p_bound"),
        ({"top_p": 0.5, "top_p_bound": 0.6}, "top_p_bound"),
        ({"add_BOS": 1}, "add_BOS"),
        ({"stop_on_eol": "yes"}, "stop_on_eol"),
        ({"stop_on_double_eol": None}, "stop_on_double_eol"),
        ({"prevent_newline_after_colon": 0}, "prevent_newline_after_colon"),
        ({"random_seed": -1}, "random_seed"),
        ({"random_seed": True}, "random_seed"),
        ({"no_log": 1}, "no_log"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2, "prompts": ["a", "b"]}, "beam_width"),
        ({"beam_width": 2, "stop_token": 1.5}, "stop_token"),
        ({"beam_width": 2, "length_penalty": "1"}, "length_penalty"),
        ({"wrong": 1}, "wrong"),
    ],
)
def test_wrong_requests_are_refused_with_the_field(server: Running, more: dict[str, Any], field: str) -> None:
    body = {"prompts": ["a"], "tokens_to_generate": 20} | more
    answer = server.client.put("/api", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert list(answer.json()) == ["message"]
    assert field in answer.json()["message"]
