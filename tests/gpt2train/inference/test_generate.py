"""Generation, also of a T5: equal to transformers, independent of the batch, and the effect of each setting."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from gpt2train.convert.huggingface import read_model, read_shape
from gpt2train.data.tokenizer import END_OF_TEXT, build_tokenizer, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder, decoder_of
from gpt2train.inference.generate import generate
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.parallel.layout import Layout
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.convert.test_hf_t5 import save_peer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.models import generate_tokens, lively

SHAPE = Shape(vocab=50257, layers=2, heads=4, hidden=32, context=64)
SMALL = Shape(vocab=100, layers=2, heads=2, hidden=16, context=24)
GREEDY = SamplingSettings(temperature=0, max_new_tokens=20)
SIX = {letter: number for number, letter in enumerate("abcde")} | {END_OF_TEXT: 5}


@pytest.fixture(scope="module")
def model() -> GPT2:
    return lively(SHAPE)


@pytest.fixture(scope="module")
def tokenizer(open_data: Path) -> Tokenizer:
    return load_tokenizer(open_data / "bpe")


def plain_greedy(model: GPT2, prompt: list[int], new: int, end: int | None) -> list[int]:
    """No cache, no batch: the whole sequence through the model for every token."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + new, model.shape.context):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1, : model.shape.vocab].argmax()))
        if tokens[-1] == end:
            break
    return tokens[len(prompt) :]


def test_equal_to_transformers(model: GPT2, tokenizer: Tokenizer, open_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_model(tmp_path / "m", dict(model.state_dict()), SHAPE, open_data / "bpe")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    prompts = ["The", "Once upon a time there was", "In 1984 the"]
    ours = generate(model, tokenizer, prompts, GREEDY)
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        made = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        assert made[0, ids.shape[1] :].tolist() == list(answer.tokens)
        assert len(set(answer.tokens)) > 3


@pytest.mark.parametrize("temperature", [0, 1e-40, 5e-324, 100])
def test_rows_that_pad_the_embedding_are_never_sampled(temperature: float) -> None:
    """A model of 128 rows, none of them padding of ours, whose tokenizer has four tokens; the other rows weigh more."""
    words = {"a": 0, "b": 1, "c": 3, END_OF_TEXT: 4}
    tokenizer = build_tokenizer(words, [])
    made = lively(Shape(vocab=128, layers=1, heads=2, hidden=16, context=24))
    made.wte.weight[5:] *= 20
    asked = SamplingSettings(temperature=temperature, max_new_tokens=20, samples=4, log_probs=True, stop_tokens=(9,))
    drawn = {token for answer in generate(made, tokenizer, ["ab"], asked) for token in answer.tokens}
    assert drawn <= {*words.values(), 9} and len(drawn) > (temperature > 1)
    beams = beam_search(LocalDecoder(made, 6), [0, 1], BeamSettings(beams=6, max_new_tokens=5), tokenizer)
    assert {token for beam in beams for token in beam.tokens} <= set(words.values())
    assert beams and all(beam.score > -math.inf for beam in beams)


NUMBERS = [0, 1, 1 - 2**-53, 5e-324, 1e-45, 1e-40, 1e-300, 2, 10, -10, 100, 128, 1e308, 2**31, 2**63, 10**400]


@pytest.mark.parametrize("model", [SamplingSettings, BeamSettings])
def test_any_number_that_a_setting_allows_generates(model: type[SamplingSettings | BeamSettings]) -> None:
    made, tokenizer = lively(Shape(vocab=6, layers=1, heads=2, hidden=16, context=24)), build_tokenizer(SIX, [])
    allowed = 0
    for field in model.model_fields:
        for number in NUMBERS:
            scores = {"log_probs": True, "top_log_probs": 3} if model is SamplingSettings else {"beams": 5}
            asked = {"max_new_tokens": 4, **scores, field: [number] if field == "stop_tokens" else number}
            try:
                one = model.model_validate(asked)
            except ValidationError:
                continue
            allowed += 1
            if isinstance(one, BeamSettings):
                assert beam_search(LocalDecoder(made, one.beams), [0, 1], one, tokenizer)
            elif one.window < made.shape.context:
                assert generate(made, tokenizer, ["ab"], one.model_copy(update={"samples": min(one.samples, 9)}))
    assert allowed > (40 if model is SamplingSettings else 20)


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=23), min_size=1, max_size=7),
    new=st.integers(1, 12),
    batch=st.integers(1, 8),
    seed=st.integers(0, 20),
)
def test_a_batch_gives_what_each_prompt_gives_alone(prompts: list[list[int]], new: int, batch: int, seed: int) -> None:
    model = lively(SMALL, seed)
    end = seed % 100
    settings = SamplingSettings(temperature=0, max_new_tokens=new)
    expected = [plain_greedy(model, prompt, new, end) for prompt in prompts]
    assert generate_tokens(model, prompts, end, settings, batch) == expected


def test_padded_vocabulary_rows_are_never_drawn() -> None:
    model = lively(SMALL)
    with torch.no_grad():
        model.wte.weight[SMALL.vocab :] = 50.0
    for sampling in (GREEDY, SamplingSettings(temperature=5, max_new_tokens=20)):
        tokens = generate_tokens(model, [[1], [2, 3]], None, sampling)
        assert max(map(max, tokens)) < SMALL.vocab


def test_length_context_and_end_token_end_the_text(model: GPT2, tokenizer: Tokenizer) -> None:
    short = generate(model, tokenizer, ["A long way"], SamplingSettings(temperature=0, max_new_tokens=3))[0]
    assert (short.stopped, len(short.tokens)) == ("length", 3)
    long = generate(model, tokenizer, ["A long way"], SamplingSettings(temperature=0, max_new_tokens=500))[0]
    assert long.stopped in ("context", "end")
    sure = lively(SHAPE)
    with torch.no_grad():  # one direction, and `<|endoftext|>` far along it
        sure.ln_f.weight.zero_()
        sure.ln_f.bias.fill_(1)
        sure.wte.weight[50256] = 9
    ended = generate(sure, tokenizer, ["Anything", "", "Something longer"], GREEDY)
    assert [(answer.stopped, answer.tokens, answer.text) for answer in ended] == [("end", (50256,), "")] * 3


def test_the_special_token_in_a_prompt_is_text(model: GPT2, tokenizer: Tokenizer) -> None:
    text = "<|endoftext|>"
    assert generate(model, tokenizer, [text], GREEDY)[0].tokens != generate(model, tokenizer, [""], GREEDY)[0].tokens


pytest.importorskip("transformers")
RANKS = Path(__file__).parents[1] / "parallel/run_cases.py"
PROMPTS = [[5, 8, 13, 21, 34], [7], list(range(3, 40)), [99, 98, 97], [1, 2] * 10]
NEW = 24


def theirs(peer: Any, prompt: list[int], **options: Any) -> list[int]:
    chosen = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": 1, "pad_token_id": 0}
    chosen["use_cache"] = False  # whose size is that of the encoder in transformers 5
    found: list[int] = peer.generate(torch.tensor([prompt]), **chosen | options)[0].tolist()
    assert found.pop(0) == 0  # the decoder's first token
    return found


@pytest.mark.parametrize("kind", ["relu, tied", "gated, untied"])
def test_greedy_generation_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    peer = save_peer(kind, tmp_path / "model")
    expected = [theirs(peer, prompt) for prompt in PROMPTS]
    model = read_model(tmp_path / "model")
    assert len({tuple(tokens) for tokens in expected}) > 1
    for batch in (2, 5):
        settings = SamplingSettings(max_new_tokens=NEW, top_k=1)
        assert generate_tokens(model, PROMPTS, 1, settings, batch) == expected


def test_beams_are_those_of_transformers(tmp_path: Path) -> None:
    peer = save_peer("relu, tied", tmp_path / "model")
    model = read_model(tmp_path / "model")
    settings = BeamSettings(beams=3, max_new_tokens=12, stop_tokens=(1,))
    decoder = decoder_of(model, 3)
    for prompt in PROMPTS:
        best = beam_search(decoder, prompt, settings)[0]
        assert list(best.tokens) == theirs(peer, prompt, num_beams=3, max_new_tokens=12)


def test_two_tensor_parallel_processes_write_what_one_writes(tmp_path: Path) -> None:
    save_peer("gated, untied", tmp_path / "model")
    case = f"decode_cases.encoder_decoder '{tmp_path / 'model'}' 2 1"
    run_ranks(RANKS, str(tmp_path / "found.json"), case)
    whole = sum(parameter.numel() for parameter in read_model(tmp_path / "model").parameters())
    found, second = json.loads((tmp_path / "found.json").read_text())[case]
    assert found["greedy"] and found["beams"] and found["lengths"] and found["difference"] < 2e-5, found
    assert len({tuple(tokens) for tokens in found["tokens"]}) > 1
    assert "has an encoder and a decoder" in found["refused"]
    assert found["parameters"] == second["parameters"] < 0.55 * whole
    with pytest.raises(UserError, match="t5 generates on one pipeline stage, not on 2; leave out --pp"):
        Layout.of_model(read_shape(tmp_path / "model"), 1, 2, 2)


def test_a_model_without_a_first_token_and_prompt_scores_are_refused(tmp_path: Path) -> None:
    save_peer("relu, tied", tmp_path / "model")
    file = tmp_path / "model/config.json"
    fields = json.loads(file.read_text()) | {"decoder_start_token_id": None, "pad_token_id": None}
    with pytest.raises(UserError, match="has no scores of it"):
        decoder_of(read_model(tmp_path / "model"), 1).logits([1, 2])
    file.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"set model\.options\.start_id"):
        decoder_of(read_model(tmp_path / "model"), 1)
