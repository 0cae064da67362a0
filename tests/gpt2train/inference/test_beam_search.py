"""Beam search against transformers on the same weights, and its general properties."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.data.wordpiece import build_wordpiece
from gpt2train.errors import RunError, UserError
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.inference.text_stream import TextStream
from gpt2train.model.gpt2 import GPT2, Shape
from tests.gpt2train.convert.model_folders import to_huggingface
from tests.gpt2train.models import generate_tokens, lively

SHAPE = Shape(vocab=60, layers=2, heads=2, hidden=16, context=40)
PROMPTS = [[1, 2, 3], [7], list(range(20, 35))]
END = 11


@pytest.fixture(scope="module")
def model() -> GPT2:
    return lively(SHAPE, 5, 0.25)


@pytest.fixture(scope="module")
def theirs(model: GPT2) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": SHAPE.context, "n_embd": SHAPE.hidden, "n_layer": SHAPE.layers, "n_head": SHAPE.heads}
    config = transformers.GPT2Config(vocab_size=SHAPE.vocab, bos_token_id=0, eos_token_id=0, **sizes)
    made = transformers.GPT2LMHeadModel(config)
    made.load_state_dict(to_huggingface(dict(model.state_dict()), SHAPE), strict=False)
    made.tie_weights()
    return made.eval()


SEVERAL = (END, 5, 17, 30)
CASES = [
    *((2, 0.0, False, (END,)), (4, 2.5, False, (END,)), (3, -1.0, True, (END,)), (3, 0.6, "never", (END,))),
    *((4, 1.0, False, SEVERAL), (4, 1.0, True, ()), (2, 1.0, "never", SEVERAL), (3, 2.5, False, SEVERAL)),
]


@pytest.mark.parametrize(("beams", "penalty", "early", "stops"), CASES)
def test_beams_and_scores_equal_transformers(
    model: GPT2, theirs: Any, beams: int, penalty: float, early: Any, stops: tuple[int, ...]
) -> None:
    of_both = {"length_penalty": penalty, "early_stopping": early, "max_new_tokens": 14}
    wanted = BeamSettings(beams=beams, stop_tokens=stops[1:], **of_both)
    for prompt in PROMPTS:
        ours = beam_search(LocalDecoder(model, beams), prompt, wanted, end=stops[0] if stops else None)
        made = theirs.generate(
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


def test_stop_tokens_end_some_answers_early(model: GPT2) -> None:
    """The comparison above would also pass if no answer ended early."""
    wanted = BeamSettings(max_new_tokens=14, stop_tokens=(5, 17, 30))
    ended = [beam for prompt in PROMPTS for beam in beam_search(LocalDecoder(model, 4), prompt, wanted, end=END)]
    assert {beam.stopped for beam in ended} >= {"stop", "length"}
    assert len({len(beam.tokens) for beam in ended}) > 1


def test_one_beam_equals_greedy_decoding(model: GPT2) -> None:
    for prompt in PROMPTS:
        (beam,) = beam_search(LocalDecoder(model, 1), prompt, BeamSettings(beams=1, max_new_tokens=9))
        greedy = SamplingSettings(temperature=0, max_new_tokens=9)
        assert [list(beam.tokens)] == generate_tokens(model, [prompt], None, greedy)


def test_enough_beams_find_the_best_of_all(model: GPT2) -> None:
    """With as many beams as continuations of two tokens begin, it is the best of all 3,600 pairs."""
    found = beam_search(LocalDecoder(model, 60), [3], BeamSettings(beams=60, max_new_tokens=2, length_penalty=0))
    first = model(torch.tensor([[3]]))[0, -1, :60].log_softmax(0)
    pairs = torch.tensor([[3, token] for token in range(60)])
    both = first[:, None] + model(pairs)[:, -1, :60].log_softmax(1)
    assert [beam.score for beam in found] == pytest.approx(both.view(-1).topk(60).values.tolist(), rel=1e-4)


def test_the_end_of_the_context_ends_a_search_and_frees_its_rows(model: GPT2) -> None:
    decoder = LocalDecoder(model, 3)
    for _ in range(2):
        found = beam_search(decoder, [4] * 36, BeamSettings(beams=3, max_new_tokens=50))
        assert {(len(beam.tokens), beam.stopped) for beam in found} == {(4, "context")}
        assert list(decoder.lengths) == []


def test_the_text_leaves_out_the_stop_token(open_data: Path) -> None:
    tokenizer: Tokenizer = load_tokenizer(open_data / "bpe")
    model = lively(Shape(vocab=50257, layers=1, heads=1, hidden=8, context=20), 5, 0.25)
    with torch.no_grad():  # one direction, and the end far along it
        model.ln_f.weight.zero_()
        model.ln_f.bias.fill_(1)
        model.wte.weight[50256] = 9
    best = beam_search(LocalDecoder(model, 2), [5], BeamSettings(beams=2, max_new_tokens=3), tokenizer)[0]
    assert (best.tokens, best.text, best.stopped) == ((50256,), "", "end")


def test_a_beam_keeps_the_space_before_its_first_word() -> None:
    tokenizer = build_wordpiece("[UNK]\n[SEP]\nwords\n##ly\n")
    shape = Shape(vocab=4, layers=1, heads=1, hidden=8, context=20)
    for seed in range(5):
        model = lively(shape, seed, 0.25)
        wanted = BeamSettings(beams=2, max_new_tokens=3, stop_tokens=(0,))
        for beam in beam_search(LocalDecoder(model, 2), [2], wanted, tokenizer):
            sequence = TextStream(tokenizer)
            for token in beam.tokens[: -1 if beam.stopped in ("end", "stop") else None]:
                sequence.add(token)
            assert beam.text == sequence.text
            assert beam.text.startswith(" words") or beam.tokens[0] != 2


def test_wrong_beam_settings_are_refused(model: GPT2) -> None:
    with pytest.raises(UserError, match="has 40 tokens, the context is 40"):
        beam_search(LocalDecoder(model, 4), [1] * 40, BeamSettings())
    with pytest.raises(UserError, match="5 beams are too many, at most 4 can run"):
        beam_search(LocalDecoder(model, 4), [1], BeamSettings(beams=5))
    broken = lively(SHAPE, 5, 0.25)
    broken.ln_f.bias.data.fill_(float("nan"))
    decoder = LocalDecoder(broken, 4)
    with pytest.raises(RunError, match="not finite"):
        beam_search(decoder, [1], BeamSettings())
    assert list(decoder.lengths) == []
