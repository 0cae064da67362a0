"""Sampling of tokens and what becomes of them: distribution of draws, stops, scores, the window, batches, text."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.inference.batch import Batch, Continuation
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.inference.generate import continue_tokens, generate
from gpt2train.inference.sampling import restrict, rng_for, sample
from gpt2train.inference.sequence import TokenSequence, sample_next
from gpt2train.inference.settings import SamplingSettings
from gpt2train.inference.text_stream import TextStream, token_bytes
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.training.sample_text import _draw
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


def wanted(**given: object) -> SamplingSettings:
    return SamplingSettings.model_validate({"temperature": 0, "max_new_tokens": 8} | given)


def test_a_stop_string_or_token_ends_the_text_before_it(model: GPT2, tokenizer: Tokenizer) -> None:
    whole = generate(model, tokenizer, ["One"], wanted())[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = generate(model, tokenizer, ["One"], wanted(stop=["never there", stop]))[0]
    assert (cut.text, cut.stopped) == (whole.text[: whole.text.index(stop)], "stop")
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert len(cut.tokens) < len(whole.tokens) and stop in tokenizer.decode(list(cut.tokens))
    cut = generate(model, tokenizer, ["One"], wanted(stop_tokens=[whole.tokens[3]]))[0]
    place = whole.tokens.index(whole.tokens[3])
    assert (cut.tokens, cut.stopped) == (whole.tokens[: place + 1], "stop")
    assert cut.text == tokenizer.decode(list(whole.tokens[:place]))


def test_samples_have_random_streams_of_their_own(small: GPT2) -> None:
    prompts = [[1, 2], [3, 4, 5], [6]]
    drawn = wanted(temperature=1, samples=3, seed=6)
    made = continue_tokens(small, prompts, drawn, batch=2)
    assert [(one.prompt_index, one.sample) for one in made] == [divmod(number, 3) for number in range(9)]
    assert len({tuple(one.tokens) for one in made}) == 9
    assert [one.tokens for one in continue_tokens(small, prompts, drawn, batch=9)] == [one.tokens for one in made]
    single = generate_tokens(small, prompts, None, drawn.model_copy(update={"samples": 1}))
    assert single == [one.tokens for one in made if one.sample == 0]


def test_log_probabilities_equal_those_of_the_model(small: GPT2) -> None:
    prompt = [5, 6, 7, 8]
    asked = wanted(temperature=3, top_k=40, log_probs=True, prompt_log_probs=True, top_log_probs=3)
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
    asked = wanted(max_new_tokens=0, prompt_log_probs=True)
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
    asked = wanted(window=window, max_new_tokens=45)
    expected = [plain_window(small, prompt, 45, window) for prompt in prompts]
    for batch in (1, 3, 5):
        made = continue_tokens(small, prompts, asked, batch=batch)
        assert [one.tokens for one in made] == expected
        assert {one.finished for one in made} == {"length"}


def test_a_window_or_prompt_that_fills_the_context_is_refused(model: GPT2, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="prompt 1 has a window of 32 tokens, the model's context is 32; give less"):
        generate(model, tokenizer, ["x"], wanted(window=32))
    with pytest.raises(UserError, match=r"prompt 2 has .*shorten it to 31 or fewer, or give a window"):
        generate(model, tokenizer, ["x", "word " * 40], wanted())
    assert generate(model, tokenizer, ["word " * 40], wanted(window=8))[0].stopped == "length"


def test_no_newline_is_drawn_after_a_colon_if_switched_off(tokenizer: Tokenizer) -> None:
    (colon,), (newline,), (letter,) = encode_ordinary(tokenizer, [":", "\n", "b"])
    logits = torch.zeros(50257)
    logits[newline], logits[letter] = 9, 5
    for prevents, expected in ((True, [letter, newline]), (False, [newline] * 2)):
        sequence = TokenSequence([letter, colon], wanted(prevent_newline_after_colon=prevents), 32, tokenizer)
        assert [sequence.sample_next(logits), sequence.sample_next(logits)] == expected


def test_sequences_that_join_and_leave_a_batch_are_unchanged(small: GPT2) -> None:
    """Each its own settings, in any company: what it gives alone. Two that join together end together."""
    lengths = enumerate([2, 2, 3, 4, 5, 6, 7, 7], 1)
    asked = [wanted(max_new_tokens=new, temperature=n % 2, seed=n, log_probs=n % 3 == 0) for n, new in lengths]
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


TINY = [5e-324, 1e-45, 1e-40, 1.2e-38]  # rounded to 0, subnormal, or the divisor of an infinite quotient in float32
TEMPERATURES = st.sampled_from(TINY) | st.floats(0, 100, exclude_min=True)


@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=30, unique=True), st.integers(1, 40))
def test_top_k_keeps_the_k_greatest(values: list[float], k: int) -> None:
    kept = restrict(torch.tensor([values]), k, [1.0])[0].isfinite()
    expected = sorted(values, reverse=True)[:k]
    assert [value for value, keep in zip(values, kept, strict=True) if keep] == [v for v in values if v in expected]


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=30, unique=True), st.floats(0.05, 0.999))
def test_top_p_keeps_the_fewest_that_reach_p(weights: list[int], p: float) -> None:
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    kept = restrict(probabilities.log().unsqueeze(0), 0, [p])[0].isfinite()
    total, expected = 0.0, set()
    for place in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if total >= p - 1e-12:
            break
        expected.add(place)
        total += weights[place] / sum(weights)
    assert set(kept.nonzero().flatten().tolist()) == expected


@settings(max_examples=50)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    st.sampled_from([0.0, 1e-300, 0.5, 1 - 2**-53]),
    st.integers(0, 5),
    st.floats(1e-30, 1),
    TEMPERATURES,
)
def test_a_drawn_token_is_allowed(values: list[float], chance: float, k: int, p: float, temperature: float) -> None:
    logits = torch.tensor([values])
    (token,) = sample(logits, [temperature], k, [p], [chance])
    scaled = (logits - logits.max()).double() / max(temperature, torch.finfo(logits.dtype).tiny)
    # Rounding of the sums in float32 moves the edge of the nucleus by one token in some millions.
    assert restrict(scaled, k, [min(1.0, p * (1 + 1e-6))])[0, token].isfinite()


@settings(max_examples=50)
@given(st.lists(st.floats(-(2**99), 2**99, width=32), min_size=1, max_size=40), TEMPERATURES, st.integers(0, 99))
def test_a_small_temperature_draws_the_most_likely_token(values: list[float], temperature: float, seed: int) -> None:
    """In generation and in the samples of a training; with several of them, one of these."""
    logits = torch.tensor(values, dtype=torch.float64)
    drawn = [_draw(logits, temperature, torch.Generator().manual_seed(seed))]
    drawn += sample(logits.float()[None], [temperature], 0, [1.0], [seed / 100])
    distances = [float(logits.max() - logits[token]) for token in drawn]
    assert all(distance <= 750 * max(temperature, 2e-38) for distance in distances)  # exp(-750) is 0


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.0, 0.2]]).log().repeat(20_000, 1)
    stream = rng_for(0, 0)
    drawn = torch.tensor(sample(logits, [1.0] * 20_000, 0, [1.0] * 20_000, [stream.random() for _ in range(20_000)]))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.0, 0.2]), atol=0.012)  # 3.4 standard errors
    assert shares[2] == 0
    names = [(seed, row, sample) for seed in range(3) for row in range(3) for sample in range(3)]
    assert len({rng_for(*name).random() for name in names}) == len(names)  # streams are distinct
    assert rng_for(1, 2, 0).random() == rng_for(1, 2).random()


def test_the_rounding_of_logits_changes_no_draw() -> None:
    """Logits differ with the size of the batch, and with it where the ends of 50,000 intervals are."""
    generator, stream = torch.Generator().manual_seed(1), rng_for(0, 0)
    logits = torch.randn(640, 50_257, generator=generator) * 3
    other = logits + torch.randn(logits.shape, generator=generator) * 1e-5
    chances, ones = [stream.random() for _ in range(640)], [1.0] * 640
    assert sample(logits, ones, 0, ones, chances) == sample(other, ones, 0, ones, chances)


SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0),
    SamplingSettings(top_k=3, temperature=2),
    SamplingSettings(top_p=0.9, top_p_decay=0.5, top_p_bound=0.1, log_probs=True, top_log_probs=2),
    SamplingSettings(top_p=0.5, seed=4, log_probs=True),
]


@given(st.lists(st.sampled_from(range(len(SETTINGS))), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_row_in_a_batch_draws_as_it_does_alone(kinds: list[int], seed: int) -> None:
    steps = torch.randn(4, len(kinds), 50, generator=torch.Generator().manual_seed(seed)) * 2
    together = [TokenSequence([1], SETTINGS[kind], 100, prompt_index=row) for row, kind in enumerate(kinds)]
    alone = [TokenSequence([1], SETTINGS[kind], 100, prompt_index=row) for row, kind in enumerate(kinds)]
    for logits in steps:
        sample_next(together, logits)
        for row, sequence in enumerate(alone):
            sequence.sample_next(logits[row])
    assert [sequence.tokens for sequence in together] == [sequence.tokens for sequence in alone]
    assert [sequence.scores for sequence in together] == [sequence.scores for sequence in alone]


def test_top_p_decays_to_its_bound() -> None:
    # Five tokens of 0.2 less and less: p 0.75, 0.375, then 0.3 for good keep 4, 2 and 2 of them.
    logits = torch.tensor([0.2004, 0.2002, 0.2, 0.1998, 0.1996]).log()
    seen: list[set[int]] = [set(), set(), set(), set()]
    for seed in range(200):
        settings = SamplingSettings(top_p=0.75, top_p_decay=0.5, top_p_bound=0.3, seed=seed)
        sequence = TokenSequence([0], settings, 100)
        for place in range(4):
            seen[place].add(sequence.sample_next(logits))
    assert seen == [{0, 1, 2, 3}, {0, 1}, {0, 1}, {0, 1}]
    # One that decays to nothing takes the most likely.
    sequence = TokenSequence([0], SamplingSettings(top_p_decay=1e-200, max_new_tokens=9), 100)
    for _ in range(9):
        sequence.sample_next(torch.tensor([0.1, 0.2, 0.15]))
    assert sequence.tokens[1:] == [1] * 8


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_non_finite_logits_are_an_error(value: float, settings: SamplingSettings) -> None:
    with pytest.raises(RunError, match="not finite"):
        TokenSequence([0], settings, 100).sample_next(torch.tensor([0.0, value, 1.0]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 101}, "less than or equal to 100"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "greater than 0"),
        ({"top_p": 0.5, "top_p_bound": 0.6}, "is above top_p"),
        ({"max_new_tokens": 0}, "nothing to do"),
        ({"top_log_probs": 3}, "needs log_probs"),
        ({"stop": [""]}, "at least 1 character"),
        ({"stop_tokens": [-1]}, "greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplingSettings.model_validate(wrong)


TEXTS = st.text(st.sampled_from("ab \né漢🙂\u200d") | st.characters(codec="utf-8"), max_size=30)


def stream(tokenizer: Tokenizer, tokens: list[int], stop: list[str]) -> tuple[TextStream, list[str]]:
    made, pieces = TextStream(tokenizer, stop), []
    for token in tokens:
        made.add(token)
        pieces.append(made.pop_delta())
    made.end()
    return made, [*pieces, made.pop_delta()]


def test_the_pieces_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=150)
    @given(st.lists(st.integers(0, 50255), max_size=12) | TEXTS.map(lambda text: encode_ordinary(tokenizer, [text])[0]))
    def check(tokens: list[int]) -> None:
        made, pieces = stream(tokenizer, tokens, [])
        assert made.text == "".join(pieces) == tokenizer.decode(tokens)
        assert b"".join(token_bytes(tokenizer, token) for token in tokens).decode(errors="replace") == made.text

    check()
    text = "a🙂漢b"  # no piece has half a character
    _, pieces = stream(tokenizer, encode_ordinary(tokenizer, [text])[0], [])
    assert "".join(pieces) == text
    assert len(pieces) > 5 and not any("\ufffd" in piece for piece in pieces)


def test_text_ends_before_the_first_stop_string(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=150)
    @given(st.text("ab\né", max_size=25), st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3))
    def check(text: str, stop: list[str]) -> None:
        # Letter by letter: a stop string spans several tokens. The first complete one ends the text.
        tokens = [token for letter in text for token in encode_ordinary(tokenizer, [letter])[0]]
        made, pieces = stream(tokenizer, tokens, stop)
        complete = [i for i in range(len(text) + 1) if any(text[:i].endswith(one) for one in stop)]
        if complete:
            assert made.text == min((text[: complete[0]].split(one)[0] for one in stop), key=len)
        else:
            assert made.text == text
        assert made.stopped == bool(complete)
        assert "".join(pieces) == made.text

    check()


def test_a_possible_start_of_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    tokens = [encode_ordinary(tokenizer, [letter])[0][0] for letter in "x###y###z"]
    made, pieces = stream(tokenizer, tokens, ["###z"])
    assert pieces == ["x", "", "", "", "###y", "", "", "", "", ""]
    assert made.stopped and made.text == "x###y"
    _, pieces = stream(tokenizer, tokens[:3], ["###z"])
    assert pieces == ["x", "", "", "##"]
    # An invalid byte holds nothing back, and an unknown id has no text.
    broken = next(token for token in range(256) if token_bytes(tokenizer, token) == b"\xff")
    tokens = [broken, *encode_ordinary(tokenizer, [" text"])[0]]
    _, pieces = stream(tokenizer, tokens, [])
    assert pieces == ["\ufffd", " text", ""]
    assert token_bytes(tokenizer, 50257) == b""
    assert token_bytes(tokenizer, 50256) == b"<|endoftext|>"
