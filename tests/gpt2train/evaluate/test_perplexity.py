"""Perplexity and LAMBADA's three definitions: reference implementations, models with a known answer."""

import gzip
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from torch import Tensor

from gpt2train.convert.card_scores import LAMBADA_SHA256
from gpt2train.data.tokenizer import encode_ordinary, end_of_text_id, load_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.evaluate.curve_table import curve_lines, curve_metrics
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.files import DATA_HASH_KEY
from gpt2train.evaluate.lambada import evaluate_lambada, last_token_pairs, openai_pairs, strict_pairs
from gpt2train.evaluate.passages import last_unit, read_passages, unigram_perplexity
from gpt2train.evaluate.perplexity import document_perplexity, notes, windows
from gpt2train.evaluate.scoring import score
from gpt2train.evaluate.scoring_request import ScoringRequest
from gpt2train.evaluate.wikitext import WIKITEXT_EVALUATION, detokenize_wikitext, wikitext_perplexity
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


def test_wikitext_with_the_line_ends_and_the_mark_of_windows_is_the_same_text() -> None:
    plain = " = Title = \n \n the cat sat . \n"
    for text in (plain, plain.replace("\n", "\r\n"), "\ufeff" + plain):
        assert WIKITEXT_EVALUATION.read(text.encode(), "wiki.test.tokens") == plain


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


LAMBADA_SHAPE = Shape(vocab=50257, layers=2, heads=2, hidden=32, context=96)


class Oracle(GPT2):
    """A model with a given answer to every input: its hidden states point at the next token that `answer` names."""

    def __init__(self, vocab: int, answer: Callable[[list[int]], list[int]]) -> None:
        super().__init__(Shape(vocab=vocab, layers=1, heads=1, hidden=64, context=512))
        self.answer = answer
        with torch.no_grad():  # near-orthogonal embeddings, so that each token can be pointed at
            generator = torch.Generator().manual_seed(0)
            rows = torch.randn(self.wte.weight.shape, generator=generator)
            self.wte.weight.copy_(rows / rows.norm(dim=1, keepdim=True))

    def hidden(self, tokens: Tensor, *args: object, **kwargs: object) -> Tensor:
        return torch.stack([20 * self.wte.weight[self.answer(row)] for row in tokens.tolist()])


@pytest.fixture(scope="module")
def passages(open_data: Path) -> list[str]:
    path = open_data / "lambada/lambada_test.jsonl"
    found = read_passages(path.read_bytes(), path.name)
    assert len(found) == 5153
    return found


@pytest.fixture(scope="module")
def lambada_model() -> GPT2:
    lambada_model = initialise(GPT2(LAMBADA_SHAPE), 5)
    with torch.no_grad():  # fresh weights give an almost even distribution; these prefer some tokens
        lambada_model.wte.weight.mul_(8)
    return lambada_model.requires_grad_(False).eval()


def plain_score(lambada_model: GPT2, context: list[int], target: list[int]) -> tuple[float, bool]:
    """One pair by itself, without batch and padding: all logits, the textbook softmax."""
    ids = (context + target)[-(lambada_model.shape.context + 1) :]
    logits = lambada_model(torch.tensor([ids[:-1]]))[0, :, : lambada_model.shape.vocab]
    log_prob, right = 0.0, True
    for place in range(len(ids) - len(target), len(ids)):
        row = logits[place - 1]
        log_prob += math.log(torch.softmax(row.double(), 0)[ids[place]].item())
        right = right and int(row.argmax()) == ids[place]
    return log_prob, right


def test_scores_equal_the_reference_implementation(
    lambada_model: GPT2, tokenizer: Tokenizer, passages: list[str]
) -> None:
    some = passages[:30]
    result = evaluate_lambada(Scorer(lambada_model, tokenizer, 700), some)
    openai, last, strict = [], [], []
    truncated = 0
    for text in some:
        words = text.split(" ")
        context = encode_ordinary(tokenizer, [" ".join(words[:-1])])[0]
        target = encode_ordinary(tokenizer, [f" {words[-1]}"])[0]
        truncated += len(context) + len(target) > LAMBADA_SHAPE.context + 1
        openai.append(plain_score(lambada_model, context, target))
        whole = encode_ordinary(tokenizer, [text])[0]
        last.append(plain_score(lambada_model, whole[:-1], whole[-1:]))
        word = text.split()[-1]
        before = encode_ordinary(tokenizer, [text[: text.rfind(word)].strip()])[0]
        strict.append(plain_score(lambada_model, before, encode_ordinary(tokenizer, [f" {word}"])[0]))
    got = result["definitions"]
    assert result["passages"] == 30
    assert result["truncated"] == truncated > 0
    for name, expected in (("lambada_openai", openai), ("last_token", last), ("megatron_strict", strict)):
        assert got[name]["correct"] == sum(right for _, right in expected), name
    perplexity = math.exp(-sum(log_prob for log_prob, _ in openai) / 30)
    assert got["lambada_openai"]["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("right", [12, 9])
def test_a_model_that_is_right_scores_one(tokenizer: Tokenizer, passages: list[str], right: int) -> None:
    some = passages[:12]
    follow = {}
    for pair in openai_pairs(tokenizer, some[:right]):
        ids = pair.context + pair.target
        follow |= {ids[: place + 1]: ids[place + 1] for place in range(len(ids) - 1)}

    def answer(row: list[int]) -> list[int]:
        return [follow.get(tuple(row[: place + 1]), 0) for place in range(len(row))]

    result = evaluate_lambada(Scorer(Oracle(50257, answer).eval(), tokenizer), some)
    for scores in result["definitions"].values():
        assert (scores["accuracy"], scores["correct"]) == (right / 12, right)
        error = statistics.stdev([1] * right + [0] * (12 - right)) / math.sqrt(12)
        assert scores["standard_error"] == pytest.approx(error, abs=1e-6)
    assert len(result["notes"]) == 1
    assert "12 passages, LAMBADA's test set has 5,153" in result["notes"][0]


def test_a_model_that_is_always_wrong_is_explained(tokenizer: Tokenizer, passages: list[str]) -> None:
    result = evaluate_lambada(Scorer(Oracle(50257, lambda row: [50256] * len(row)).eval(), tokenizer), passages[:12])
    for scores in result["definitions"].values():
        assert scores["accuracy"] == 0
    assert len(result["notes"]) == 3
    assert "too few training tokens" in result["notes"][1]
    assert "word counts alone" in result["notes"][2]


def test_the_definitions_differ_on_a_partly_right_word(tokenizer: Tokenizer) -> None:
    """A word of several tokens of which the model knows the last only: right by the last token, wrong by the word."""
    text = "They looked at the old Zyxwvutsrq"
    ids = encode_ordinary(tokenizer, [text])[0]
    pair = openai_pairs(tokenizer, [text])[0]
    assert len(pair.target) > 1

    def answer(row: list[int]) -> list[int]:
        return [ids[-1] if row[: place + 1] == ids[:-1] else 0 for place in range(len(row))]

    got = evaluate_lambada(Scorer(Oracle(50257, answer).eval(), tokenizer), [text])["definitions"]
    right = {name: scores["correct"] for name, scores in got.items()}
    assert right == {"lambada_openai": 0, "last_token": 1, "megatron_strict": 0}


CHINESE = ["他走进屋里，看见桌上放着一本书", "第一行\n今天天气很好。", "我们使用Python", "好"]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        *zip(CHINESE, ["书", "好。", "Python", "好"], strict=True),
        ("ภาษาไทยที่นี่", "นี่"),
        ("བོད་སྐད་ཡིན།", "ཡིན།"),
        ("他看见一本 书", None),
        ("word", None),
        ("한국어", None),
    ],
)
def test_the_last_character_is_the_target_without_spaces(tokenizer: Tokenizer, text: str, unit: str | None) -> None:
    assert last_unit(text) == unit
    if unit is None:
        return
    for pair in (openai_pairs(tokenizer, [text])[0], strict_pairs(tokenizer, [text])[0]):
        ids = pair.context + pair.target
        assert tokenizer.decode(ids[ids[0] == end_of_text_id(tokenizer) :]) == text
        target = tokenizer.decode(pair.target)
        assert target.endswith(unit) or "\ufffd" in target  # the first byte of a character may be shared
        assert len(target) <= len(unit) + 1


def test_a_chinese_set_is_scored_by_its_characters(tokenizer: Tokenizer, lambada_model: GPT2) -> None:
    scorer = Scorer(lambada_model, tokenizer)
    result = evaluate_lambada(scorer, CHINESE)
    pairs = openai_pairs(tokenizer, CHINESE)
    log_prob = sum(plain_score(lambada_model, list(pair.context), list(pair.target))[0] for pair in pairs)
    found = result["definitions"]
    assert found["lambada_openai"]["perplexity"] == pytest.approx(math.exp(-log_prob / len(pairs)), rel=1e-4)
    for name in ("lambada_openai", "megatron_strict"):
        assert found[name]["definition"].endswith("of scripts without spaces between words: the last character")
    assert "last character" not in found["last_token"]["definition"]
    marked = evaluate_lambada(scorer, ["他看见一本 书", "a b"])
    assert "last character" not in json.dumps(marked)


def test_a_clause_is_no_word_to_predict() -> None:
    clause = "他走进屋里看见桌上放着一本很厚很旧的书"
    line = json.dumps({"text": f"第一 {clause}也是"}).encode()
    with pytest.raises(UserError, match=r"x\.jsonl line 2: 21 characters follow the last space, .* remove all spaces"):
        read_passages(b'{"text": "a b"}\n' + line, "x.jsonl")
    with pytest.raises(UserError, match=r"x\.jsonl: it is UTF-16, not UTF-8; convert it: iconv"):
        read_passages('{"text": "a b"}\n'.encode("utf-16"), "x.jsonl")
    with pytest.raises(UserError, match=r"x\.jsonl is compressed by gzip; unpack it"):
        read_passages(gzip.compress(b'{"text": "a b"}\n'), "x.jsonl")
    assert read_passages(json.dumps({"text": f"一 {clause}也"}).encode(), "x") == [f"一 {clause}也"]


def test_a_last_word_without_tokens_is_one_error_line(lambada_model: GPT2) -> None:
    words = Tokenizer(models.BPE(vocab={"a": 0, "</s>": 1, "Ġ": 2}, merges=[]))
    with pytest.raises(UserError, match="passage 2: the tokenizer has no token for its last word; remove the passage"):
        evaluate_lambada(Scorer(lambada_model, words), ["a a", "a 书"])
    with pytest.raises(UserError, match="passage 1: the tokenizer has no token for its last word; remove the passage"):
        evaluate_lambada(Scorer(lambada_model, words), ["书"])  # only the space before it, in two of the definitions


@settings(max_examples=40, deadline=None)
@given(
    spans=st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=17), min_size=1, max_size=9),
    batch_tokens=st.integers(1, 60),
    seed=st.integers(0, 9),
)
def test_batches_and_padding_change_nothing(spans: list[list[int]], batch_tokens: int, seed: int) -> None:
    lambada_model = initialise(GPT2(Shape(vocab=100, layers=2, heads=2, hidden=16, context=16)), seed).eval()
    asked = [ScoringRequest(tuple(tokens), 1 + (len(tokens) + seed) % (len(tokens) - 1)) for tokens in spans]
    for answer, span in zip(score(lambada_model, asked, batch_tokens), asked, strict=True):
        alone = score(lambada_model, [span])[0]
        assert len(answer.log_probs) == span.scored
        assert answer.log_probs == pytest.approx(alone.log_probs, abs=1e-5)


def test_padded_vocabulary_rows_never_count_and_numbers_that_are_not_finite_are_an_error() -> None:
    lambada_model = initialise(GPT2(Shape(vocab=100, layers=1, heads=1, hidden=8, context=8)), 1).eval()
    before = score(lambada_model, [ScoringRequest((1, 2, 3), 2)])
    with torch.no_grad():
        lambada_model.wte.weight[100:] = 1e3
    assert score(lambada_model, [ScoringRequest((1, 2, 3), 2)]) == before
    with torch.no_grad():
        lambada_model.ln_f.weight[0] = torch.nan
    with pytest.raises(RunError, match="not finite"):
        score(lambada_model, [ScoringRequest((1, 2, 3), 2)])


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(min_size=1).filter(lambda text: text.strip()), min_size=1, max_size=4))
def test_any_text_gives_pairs_with_context_and_target(texts: list[str], tokenizer: Tokenizer) -> None:
    usable = [text for text in texts if not any(0xD800 <= ord(letter) < 0xE000 for letter in text)]
    for make in (openai_pairs, last_token_pairs, strict_pairs):
        for pair in make(tokenizer, usable):
            assert pair.context
            assert pair.target
            span = pair.request(4)
            assert 1 <= span.scored < len(span.tokens) <= 5
    for text, pair in zip(usable, openai_pairs(tokenizer, usable), strict=True):
        whole = pair.context + pair.target
        kept = whole[1:] if whole[0] == end_of_text_id(tokenizer) else whole
        assert tokenizer.decode(kept).strip() == text.strip()


def test_unigram_perplexity_equals_a_calculation_by_hand() -> None:
    # Contexts: a a b | b c. Counts a 2, b 2, c 1; total 5 + 3 + 1 = 9. Targets: a (3/9), unseen x (1/9).
    assert unigram_perplexity(["a a b a", "b c x"]) == pytest.approx(math.sqrt(9 / 3 * 9))


@pytest.mark.parametrize(
    ("about", "passages"),
    [
        ({"data_sha256": LAMBADA_SHA256}, "LAMBADA"),
        ({"data": "lambada_copy.jsonl", "data_sha256": "1a" * 32, "passages": 5153}, "LAMBADA 1a1a1a1a"),
        ({"data": "cloze.jsonl", "data_sha256": "1a" * 32, "passages": 5153}, "cloze 1a1a1a1a"),
        ({"data": "lambada_head.jsonl", "data_sha256": "2b" * 32, "passages": 500}, "cloze 2b2b2b2b"),
    ],
)
def test_a_curve_names_the_passages(about: dict[str, Any], passages: str) -> None:
    result = {**about, "definitions": {"lambada_openai": {"accuracy": 0.25, "perplexity": 40.0}}}
    point = {"step": 1, "tokens": 2, "valid_loss": None, "lambada": result}
    curve = {DATA_HASH_KEY: {"lambada": about["data_sha256"]}, "points": [point]}
    accuracy, perplexity = (metric for _, metric in curve_metrics(curve))
    assert (accuracy.axis, perplexity.axis) == (f"{passages} accuracy, %", f"{passages} perplexity")
    head = curve_lines(curve)[0]
    assert head.endswith(f"{passages} accuracy  {passages} perplexity") != (passages == "LAMBADA")


@pytest.mark.parametrize(
    "line", ["{", '{"txt": "a b"}', '"a b"', "[]", '{"text": 3}', '{"text": "  "}', '{"text": "\\ud800 b"}']
)
def test_bad_lines_are_named_and_an_empty_file_is_refused(line: str) -> None:
    for data, message in ((f'{{"text": "a good line"}}\n{line}\n', r"set.jsonl line 2"), ("\n\n", "no passage")):
        with pytest.raises(UserError, match=message):
            read_passages(data.encode(), "set.jsonl")
