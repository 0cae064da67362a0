"""Token sequences: stops, samples, log-probabilities, the window, and sequences that join and leave a batch."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.inference.batch import Batch, Continuation
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.generate import SamplingSettings, continue_tokens, generate
from gpt2train.inference.sequence import TokenSequence
from gpt2train.model.gpt2 import GPT2, Shape
from tests.gpt2train.models import generate_tokens, lively

SHAPE = Shape(vocab=50257, layers=1, heads=2, hidden=16, context=32)
SMALL = Shape(vocab=100, layers=2, heads=2, hidden=16, context=16)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return lively(SHAPE)


@pytest.fixture(scope="module")
def small() -> GPT2:
    return lively(SMALL)


@pytest.fixture(scope="module")
def tokenizer(open_data: Path) -> Tokenizer:
    return load_tokenizer(open_data / "bpe")


def settings(**given: object) -> SamplingSettings:
    return SamplingSettings.model_validate({"temperature": 0, "max_new_tokens": 8} | given)


def test_a_stop_string_ends_the_text_before_it(model: GPT2, tokenizer: Tokenizer) -> None:
    whole = generate(model, tokenizer, ["One"], settings())[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = generate(model, tokenizer, ["One"], settings(stop=["never there", stop]))[0]
    assert (cut.text, cut.stopped) == (whole.text[: whole.text.index(stop)], "stop")
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert len(cut.tokens) < len(whole.tokens) and stop in tokenizer.decode(list(cut.tokens))


def test_a_stop_token_ends_and_is_not_text(model: GPT2, tokenizer: Tokenizer) -> None:
    whole = generate(model, tokenizer, ["One"], settings())[0]
    cut = generate(model, tokenizer, ["One"], settings(stop_tokens=[whole.tokens[3]]))[0]
    place = whole.tokens.index(whole.tokens[3])
    assert (cut.tokens, cut.stopped) == (whole.tokens[: place + 1], "stop")
    assert cut.text == tokenizer.decode(list(whole.tokens[:place]))


def test_samples_have_random_streams_of_their_own(small: GPT2) -> None:
    prompts = [[1, 2], [3, 4, 5], [6]]
    drawn = settings(temperature=1, samples=3, seed=6)
    made = continue_tokens(small, prompts, drawn, batch=2)
    assert [(one.prompt_index, one.sample) for one in made] == [divmod(number, 3) for number in range(9)]
    assert len({tuple(one.tokens) for one in made}) == 9
    assert [one.tokens for one in continue_tokens(small, prompts, drawn, batch=9)] == [one.tokens for one in made]
    single = generate_tokens(small, prompts, None, drawn.model_copy(update={"samples": 1}))
    assert single == [one.tokens for one in made if one.sample == 0]


def test_log_probabilities_equal_those_of_the_model(small: GPT2) -> None:
    prompt = [5, 6, 7, 8]
    asked = settings(temperature=3, top_k=40, log_probs=True, prompt_log_probs=True, top_log_probs=3)
    (one,) = continue_tokens(small, [prompt], asked)
    everything = [*prompt, *one.tokens]
    expected = small(torch.tensor([everything]))[0, :-1, :100].log_softmax(1)
    scores = [*one.prompt_scores, *one.scores]
    assert len(scores) == len(everything) - 1
    for place, (score, token) in enumerate(zip(scores, everything[1:], strict=True)):
        assert score.log_prob == pytest.approx(float(expected[place, token]), abs=1e-4)
        best = expected[place].topk(3)
        assert [token for token, _ in score.top] == best.indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_prompt_that_fills_the_context_can_be_scored(small: GPT2) -> None:
    asked = settings(max_new_tokens=0, prompt_log_probs=True)
    prompts = [list(range(16)), [3], [4, 5]]
    made = continue_tokens(small, prompts, asked)
    found = [(len(one.prompt_scores), one.tokens, one.finished) for one in made]
    assert found == [(count, [], "length") for count in (15, 0, 1)]
    assert all(score.top == () for one in made for score in one.prompt_scores)
    with pytest.raises(ValueError, match="has 17 tokens, the model's context is 16; shorten it to 16"):
        continue_tokens(small, [list(range(17))], asked)


def plain_window(model: GPT2, prompt: list[int], new: int, window: int) -> list[int]:
    """Reference implementation: where the context is full, the text begins `context - window` tokens back."""
    context = model.shape.context
    read, made = prompt[-(context - window) :] if len(prompt) >= context else list(prompt), []
    for _ in range(new):
        made.append(int(model(torch.tensor([read]))[0, -1, : model.shape.vocab].argmax()))
        # The prompt may fill the context; there is no space for another token then.
        read = [*read, made[-1]] if len(read) < context else [*prompt, *made][-(context - window) :]
    return made


@pytest.mark.parametrize("window", [1, 4, 15])
def test_a_window_continues_past_the_context(small: GPT2, window: int) -> None:
    prompts = [[7], list(range(40)), list(range(50, 66)), [1, 2, 3], list(range(15))]
    asked = settings(window=window, max_new_tokens=45)
    expected = [plain_window(small, prompt, 45, window) for prompt in prompts]
    for batch in (1, 3, 5):
        made = continue_tokens(small, prompts, asked, batch=batch)
        assert [one.tokens for one in made] == expected
        assert {one.finished for one in made} == {"length"}


def test_a_window_or_prompt_that_fills_the_context_is_refused(model: GPT2, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="prompt 1 has a window of 32 tokens, the model's context is 32; give less"):
        generate(model, tokenizer, ["x"], settings(window=32))
    with pytest.raises(UserError, match=r"prompt 2 has .*shorten it to 31 or fewer, or give a window"):
        generate(model, tokenizer, ["x", "word " * 40], settings())
    assert generate(model, tokenizer, ["word " * 40], settings(window=8))[0].stopped == "length"


def test_no_newline_is_drawn_after_a_colon_if_switched_off(tokenizer: Tokenizer) -> None:
    (colon,), (newline,), (letter,) = encode_ordinary(tokenizer, [":", "\n", "b"])
    logits = torch.zeros(50257)
    logits[newline], logits[letter] = 9, 5
    for prevents, expected in ((True, [letter, newline]), (False, [newline] * 2)):
        sequence = TokenSequence([letter, colon], settings(prevent_newline_after_colon=prevents), 32, tokenizer)
        assert [sequence.sample_next(logits), sequence.sample_next(logits)] == expected


def test_sequences_that_join_and_leave_a_batch_are_unchanged(small: GPT2) -> None:
    """Each its own settings, in any company: what it gives alone. Two that join together end together."""
    lengths = enumerate([2, 2, 3, 4, 5, 6, 7, 7], 1)
    asked = [settings(max_new_tokens=new, temperature=n % 2, seed=n, log_probs=n % 3 == 0) for n, new in lengths]
    prompts = [[n, n + 1] if n % 2 else [n] for n in range(1, 9)]
    alone = [continue_tokens(small, [prompt], one)[0].tokens for prompt, one in zip(prompts, asked, strict=True)]
    sequences = [TokenSequence(prompt, one, 16) for prompt, one in zip(prompts, asked, strict=True)]
    jobs = [Continuation(sequence) for sequence in sequences]
    batch, waiting = Batch(LocalDecoder(small, 3)), list(jobs)
    gone = sequences[5]
    while waiting or batch.running:
        batch.join([waiting.pop(0) for _ in range(min(batch.free, len(waiting), 2))])
        assert len(batch.running) == len(batch.decoder.lengths) <= 3
        if len(gone.tokens) == 2:
            batch.drop([jobs[5]])
        batch.step()
    assert gone.tokens == alone[5][:2]
    assert [one.tokens for one in sequences if one is not gone] == alone[:5] + alone[6:]
