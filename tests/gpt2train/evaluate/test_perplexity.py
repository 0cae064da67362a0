"""Perplexity: windows against a reference implementation, models with a known answer, WikiText's detokeniser."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.perplexity import document_perplexity, notes, windows
from gpt2train.evaluate.wikitext import detokenize_wikitext, wikitext_perplexity
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise

SHAPE = Shape(vocab=50257, layers=1, heads=2, hidden=16, context=32)


@pytest.fixture(scope="module")
def tokenizer(open_data: Path) -> Tokenizer:
    return load_tokenizer(open_data / "bpe")


@pytest.fixture(scope="module")
def model() -> GPT2:
    model = initialise(GPT2(SHAPE), 7)
    with torch.no_grad():
        model.wte.weight.mul_(8)
    return model.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def uniform() -> GPT2:
    """Every token is equally likely: -log p = log 50257 each."""
    model = GPT2(SHAPE)
    with torch.no_grad():
        model.wte.weight.zero_()
    return model.requires_grad_(False).eval()


def plain_log_prob(model: GPT2, tokens: list[int], stride: int) -> float:
    """Token by token: each with as much before it as its window holds."""
    context, total = model.shape.context, 0.0
    for place in range(1, len(tokens)):
        if place <= context:
            start = 0
        else:
            window = math.ceil((place - context) / stride)  # later windows start every `stride` tokens
            start = window * stride
        logits = model(torch.tensor([tokens[start:place]]))[0, -1, : model.shape.vocab]
        total += torch.log_softmax(logits.double(), 0)[tokens[place]].item()
    return total


@given(length=st.integers(0, 200), context=st.integers(1, 40), data=st.data())
def test_windows_score_every_token_once(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    tokens = list(range(length))
    scored = []
    for number, span in enumerate(windows(tokens, context, stride)):
        assert 2 <= len(span.tokens) <= context + 1
        assert list(span.tokens) == tokens[span.tokens[0] : span.tokens[-1] + 1]
        scored += span.tokens[-span.scored :]
        if number:
            assert span.tokens[0] == number * stride
    assert scored == tokens[1:]


@pytest.mark.parametrize("stride", [1, 16])
def test_document_perplexity_equals_the_reference_implementation(
    model: GPT2, tokenizer: Tokenizer, stride: int
) -> None:
    texts = [f"{'The quick brown fox jumps over the lazy dog. ' * 7}end {i}" for i in range(2)] + ["short"]
    got = document_perplexity(Scorer(model, tokenizer, 100), texts, stride)
    end = end_of_text_id(tokenizer)
    encoded = encode_ordinary(tokenizer, texts)
    total = sum(plain_log_prob(model, [end, *ids], stride) for ids in encoded)
    words, tokens, size = sum(len(t.split()) for t in texts), sum(map(len, encoded)), sum(map(len, texts))
    assert (got["documents"], got["words"], got["tokens"], got["bytes"]) == (3, words, tokens, size)
    assert got["word_perplexity"] == pytest.approx(math.exp(-total / words), rel=1e-3)
    assert got["token_perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-4)
    assert got["bits_per_byte"] == pytest.approx(-total / math.log(2) / size, rel=1e-4)


def test_a_uniform_model_has_the_vocabulary_as_perplexity(uniform: GPT2, tokenizer: Tokenizer) -> None:
    got = document_perplexity(Scorer(uniform, tokenizer), ["one two three four five", " ", "naïve"])
    assert got["documents"] == 2
    assert got["token_perplexity"] == pytest.approx(50257, rel=1e-4)
    assert got["bytes"] == len("one two three four five") + len("naïve".encode())
    assert got["unigram_perplexity"] > 20000  # of words that occur once: nearly the size of the vocabulary


def test_a_character_is_a_word_in_scripts_without_spaces(uniform: GPT2, tokenizer: Tokenizer) -> None:
    spaced = document_perplexity(Scorer(uniform, tokenizer), ["one two three", "naïve “quotes”"])
    assert spaced["words"] == 5 and spaced["definition"].endswith("words split at white space")
    got = document_perplexity(Scorer(uniform, tokenizer), ["one two three", "今天天气很好。"])
    assert got["words"] == 9 and got["definition"].startswith(spaced["definition"])
    assert got["definition"].endswith("each character is a word")
    assert got["bits_per_byte"] > 0


def test_no_document_is_an_error(uniform: GPT2, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="held-out"):
        document_perplexity(Scorer(uniform, tokenizer), ["", " \n"])
    with pytest.raises(UserError, match="stride 33"):
        document_perplexity(Scorer(uniform, tokenizer), ["a b"], stride=33)


def test_wikitext_equals_the_reference_implementation(model: GPT2, tokenizer: Tokenizer, open_data: Path) -> None:
    text = (open_data / "wikitext/wiki.test.head20.raw").read_text(encoding="utf-8")[:1500]
    got = wikitext_perplexity(Scorer(model, tokenizer), text, stride=8)
    tokens = encode_ordinary(tokenizer, [detokenize_wikitext(text)])[0]
    words = len(text.strip().split(" "))
    loss = -plain_log_prob(model, tokens, 8) / (len(tokens) - 1)
    assert (got["words"], got["tokens"]) == (words, len(tokens))
    assert got["loss"] == pytest.approx(loss, rel=1e-4)
    adjusted = math.exp(min(20, loss * (len(tokens) - 1) / (words - 1)))
    assert got["adjusted_perplexity"] == pytest.approx(adjusted, rel=1e-3)


def test_perplexity_above_that_of_token_counts_is_explained(uniform: GPT2, tokenizer: Tokenizer) -> None:
    text = " cat sat on my mat and we" * 400
    got = wikitext_perplexity(Scorer(uniform, tokenizer), text, stride=None)
    assert got["token_perplexity"] == pytest.approx(50257, rel=1e-4)
    # Seven tokens, each 400 times of 2,800; add-one over 50,257.
    assert got["unigram_perplexity"] == pytest.approx((2800 + 50257) / 401, rel=1e-4)
    assert "too few training tokens" in got["notes"][0]
    assert notes(1.0, 1.1) == notes(1.0, 1.0) == []


@pytest.mark.parametrize(
    ("tokenised", "plain"),
    [
        ("a guest @-@ starring role in 2 @,@ 000 or 3 @.@ 5", "a guest-starring role in 2,000 or 3.5"),
        ("film , television ; it was : good . Yes ! No ? So", "film, television; it was: good. Yes! No? So"),
        ("the ( first ) of [ two ] { three }", "the (first) of [two] {three}"),
        ('he said " hello there " and left', 'he said "hello there" and left'),
        ("Bell 's play and the players ' room", "Bell's play and the players' room"),
        ("at 20 ° C", "at 20°C"),
        (" = = Career = = \n", " == Career ==\n"),
        ("the N word", "the 1 word"),
        # Megatron-LM's `/' [0-9]/` is a pattern of another language: in Python it matches a slash, and no real text.
        ("the class of ' 68 in it", "the class of ' 68 in it"),
    ],
)
def test_the_detokeniser_restores_plain_text(tokenised: str, plain: str) -> None:
    assert detokenize_wikitext(tokenised) == plain
