"""Megatron-LM's /api: its fields, limits and answers; wrong input is a 400 with a message."""

import json
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
    for more, settings, end in (
        ({"beam_width": 4}, BeamSettings(beams=4, max_new_tokens=9), 256),
        (shorter, BeamSettings(beams=3, length_penalty=0.5, max_new_tokens=9), 70),
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
