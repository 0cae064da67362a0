"""Generation and beam search, also of a T5: equal to transformers, independent of the batch, effects of settings."""

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
from gpt2train.data.wordpiece import build_wordpiece
from gpt2train.errors import RunError, UserError
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder, decoder_of
from gpt2train.inference.generate import generate
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.inference.text_stream import TextStream
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.parallel.layout import Layout
from tests.gpt2train.convert.model_folders import to_huggingface, write_model
from tests.gpt2train.convert.test_hf_layout import save_t5
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.models import generate_tokens, lively

SHAPE = Shape(vocab=50257, layers=2, heads=4, hidden=32, context=64)
SMALL = Shape(vocab=100, layers=2, heads=2, hidden=16, context=24)
GREEDY = SamplingSettings(temperature=0, max_new_tokens=20)
SIX = {letter: number for number, letter in enumerate("abcde")} | {END_OF_TEXT: 5}
SEARCHED = Shape(vocab=60, layers=2, heads=2, hidden=16, context=40)
STARTS = [[1, 2, 3], [7], list(range(20, 35))]
END = 11
SEVERAL = (END, 5, 17, 30)
CASES = [
    *((2, 0.0, False, (END,)), (4, 2.5, False, (END,)), (3, -1.0, True, (END,)), (3, 0.6, "never", (END,))),
    *((4, 1.0, False, SEVERAL), (4, 1.0, True, ()), (2, 1.0, "never", SEVERAL), (3, 2.5, False, SEVERAL)),
]


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
    peer = save_t5(kind, tmp_path / "model")
    expected = [theirs(peer, prompt) for prompt in PROMPTS]
    model = read_model(tmp_path / "model")
    assert len({tuple(tokens) for tokens in expected}) > 1
    for batch in (2, 5):
        settings = SamplingSettings(max_new_tokens=NEW, top_k=1)
        assert generate_tokens(model, PROMPTS, 1, settings, batch) == expected


def test_beams_are_those_of_transformers(tmp_path: Path) -> None:
    peer = save_t5("relu, tied", tmp_path / "model")
    model = read_model(tmp_path / "model")
    settings = BeamSettings(beams=3, max_new_tokens=12, stop_tokens=(1,))
    decoder = decoder_of(model, 3)
    for prompt in PROMPTS:
        best = beam_search(decoder, prompt, settings)[0]
        assert list(best.tokens) == theirs(peer, prompt, num_beams=3, max_new_tokens=12)


def test_two_tensor_parallel_processes_write_what_one_writes(tmp_path: Path) -> None:
    save_t5("gated, untied", tmp_path / "model")
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
    save_t5("relu, tied", tmp_path / "model")
    file = tmp_path / "model/config.json"
    fields = json.loads(file.read_text()) | {"decoder_start_token_id": None, "pad_token_id": None}
    with pytest.raises(UserError, match="has no scores of it"):
        decoder_of(read_model(tmp_path / "model"), 1).logits([1, 2])
    file.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"set model\.options\.start_id"):
        decoder_of(read_model(tmp_path / "model"), 1)


@pytest.fixture(scope="module")
def searched() -> GPT2:
    return lively(SEARCHED, 5, 0.25)


@pytest.fixture(scope="module")
def peer_search(searched: GPT2) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "n_positions": SEARCHED.context,
        "n_embd": SEARCHED.hidden,
        "n_layer": SEARCHED.layers,
        "n_head": SEARCHED.heads,
    }
    config = transformers.GPT2Config(vocab_size=SEARCHED.vocab, bos_token_id=0, eos_token_id=0, **sizes)
    made = transformers.GPT2LMHeadModel(config)
    made.load_state_dict(to_huggingface(dict(searched.state_dict()), SEARCHED), strict=False)
    made.tie_weights()
    return made.eval()


@pytest.mark.parametrize(("beams", "penalty", "early", "stops"), CASES)
def test_beams_and_scores_equal_transformers(
    searched: GPT2, peer_search: Any, beams: int, penalty: float, early: Any, stops: tuple[int, ...]
) -> None:
    of_both = {"length_penalty": penalty, "early_stopping": early, "max_new_tokens": 14}
    wanted = BeamSettings(beams=beams, stop_tokens=stops[1:], **of_both)
    for prompt in STARTS:
        ours = beam_search(LocalDecoder(searched, beams), prompt, wanted, end=stops[0] if stops else None)
        made = peer_search.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            **of_both,
            **{"num_beams": beams, "num_return_sequences": beams, "do_sample": False, "pad_token_id": 59},
            **{"eos_token_id": list(stops) or None, "return_dict_in_generate": True, "output_scores": True},
        )
        assert [beam.score for beam in ours] == pytest.approx(made.sequences_scores.tolist(), rel=1e-4)
        for beam, row in zip(ours, made.sequences[:, len(prompt) :].tolist(), strict=True):
            assert row[: len(beam.tokens)] == list(beam.tokens)
            assert set(row[len(beam.tokens) :]) <= {59}
            last = beam.tokens[-1]
            assert beam.stopped == ("length" if last not in stops else "end" if last == END else "stop")


def test_stop_tokens_end_some_answers_early(searched: GPT2) -> None:
    """The comparison above would also pass if no answer ended early."""
    wanted = BeamSettings(max_new_tokens=14, stop_tokens=(5, 17, 30))
    ended = [beam for prompt in STARTS for beam in beam_search(LocalDecoder(searched, 4), prompt, wanted, end=END)]
    assert {beam.stopped for beam in ended} >= {"stop", "length"}
    assert len({len(beam.tokens) for beam in ended}) > 1


def test_one_beam_equals_greedy_decoding(searched: GPT2) -> None:
    for prompt in STARTS:
        (beam,) = beam_search(LocalDecoder(searched, 1), prompt, BeamSettings(beams=1, max_new_tokens=9))
        greedy = SamplingSettings(temperature=0, max_new_tokens=9)
        assert [list(beam.tokens)] == generate_tokens(searched, [prompt], None, greedy)


def test_enough_beams_find_the_best_of_all(searched: GPT2) -> None:
    """With as many beams as continuations of two tokens begin, it is the best of all 3,600 pairs."""
    found = beam_search(LocalDecoder(searched, 60), [3], BeamSettings(beams=60, max_new_tokens=2, length_penalty=0))
    first = searched(torch.tensor([[3]]))[0, -1, :60].log_softmax(0)
    pairs = torch.tensor([[3, token] for token in range(60)])
    both = first[:, None] + searched(pairs)[:, -1, :60].log_softmax(1)
    assert [beam.score for beam in found] == pytest.approx(both.view(-1).topk(60).values.tolist(), rel=1e-4)


def test_the_end_of_the_context_ends_a_search_and_frees_its_rows(searched: GPT2) -> None:
    decoder = LocalDecoder(searched, 3)
    for _ in range(2):
        found = beam_search(decoder, [4] * 36, BeamSettings(beams=3, max_new_tokens=50))
        assert {(len(beam.tokens), beam.stopped) for beam in found} == {(4, "context")}
        assert list(decoder.lengths) == []


def test_the_text_leaves_out_the_stop_token(open_data: Path) -> None:
    tokenizer: Tokenizer = load_tokenizer(open_data / "bpe")
    searched = lively(Shape(vocab=50257, layers=1, heads=1, hidden=8, context=20), 5, 0.25)
    with torch.no_grad():  # one direction, and the end far along it
        searched.ln_f.weight.zero_()
        searched.ln_f.bias.fill_(1)
        searched.wte.weight[50256] = 9
    best = beam_search(LocalDecoder(searched, 2), [5], BeamSettings(beams=2, max_new_tokens=3), tokenizer)[0]
    assert (best.tokens, best.text, best.stopped) == ((50256,), "", "end")


def test_a_beam_keeps_the_space_before_its_first_word() -> None:
    tokenizer = build_wordpiece("[UNK]\n[SEP]\nwords\n##ly\n")
    shape = Shape(vocab=4, layers=1, heads=1, hidden=8, context=20)
    for seed in range(5):
        searched = lively(shape, seed, 0.25)
        wanted = BeamSettings(beams=2, max_new_tokens=3, stop_tokens=(0,))
        for beam in beam_search(LocalDecoder(searched, 2), [2], wanted, tokenizer):
            sequence = TextStream(tokenizer)
            for token in beam.tokens[: -1 if beam.stopped in ("end", "stop") else None]:
                sequence.add(token)
            assert beam.text == sequence.text
            assert beam.text.startswith(" words") or beam.tokens[0] != 2


def test_wrong_beam_settings_are_refused(searched: GPT2) -> None:
    with pytest.raises(UserError, match="has 40 tokens, the context is 40"):
        beam_search(LocalDecoder(searched, 4), [1] * 40, BeamSettings())
    with pytest.raises(UserError, match="5 beams are too many, at most 4 can run"):
        beam_search(LocalDecoder(searched, 4), [1], BeamSettings(beams=5))
    broken = lively(SEARCHED, 5, 0.25)
    broken.ln_f.bias.data.fill_(float("nan"))
    decoder = LocalDecoder(broken, 4)
    with pytest.raises(RunError, match="not finite"):
        beam_search(decoder, [1], BeamSettings())
    assert list(decoder.lengths) == []
