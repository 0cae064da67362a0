"""Tokenizers with fewer or more tokens than the model has rows, or with a token before a text: every command."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings
from gpt2train.convert.detect import vocabulary_of
from gpt2train.convert.huggingface import read_model, save_model
from gpt2train.data.template import encode_prompts
from gpt2train.data.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash, vocab_size
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.lambada import last_token_pairs, openai_pairs, strict_pairs
from gpt2train.evaluate.perplexity import document_perplexity
from gpt2train.evaluate.wikitext import wikitext_perplexity
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import LocalDecoder, decoder_of
from gpt2train.inference.generate import SamplingSettings, generate
from gpt2train.inference.settings import BeamSettings
from gpt2train.model.families import Shape, sizes
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.serve.server import prepare
from gpt2train.serve.settings import ServeSettings
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, need_manifest
from tasks.train.step import resolved_config
from tests.flows.small_tokens import TRAIN, prepare_tokens
from tests.gpt2train.data.test_template import POST_PROCESSORS, folder_of
from tests.gpt2train.serve.local_server import LETTERS, Running, running

ROWS = len(LETTERS) + 20
SHAPE = Shape(vocab=ROWS, layers=1, heads=2, hidden=16, context=64)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = initialise(GPT2(SHAPE), 3)
    with torch.no_grad():
        made.ln_f.bias[0] = 5
        made.wte.weight[:ROWS, 0] = torch.linspace(0, 1, ROWS)
    (tmp_path / "tokenizer").mkdir()
    save_tokenizer(tmp_path / "tokenizer", LETTERS, [])
    weights = LazyWeights(SHAPE, in_memory(dict(made.state_dict())))
    save_model(tmp_path / "model", weights, tmp_path / "tokenizer")
    return tmp_path / "model"


@pytest.fixture
def too_large(model: Path) -> Iterator[Path]:
    letters = LETTERS | {f"{chr(0x100)}{number}": len(LETTERS) + number for number in range(50)}
    save_tokenizer(model, letters, [])
    yield model


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command(app, list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_smaller_tokenizer_goes_through_every_command(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = f"note: the tokenizer has {len(LETTERS)} tokens; the other 20 stand for no text"
    for to, source, target in (("gpt2train", model, "there"), ("huggingface", tmp_path / "there", "back")):
        code, out, err = call(capsys, "convert", str(source), str(tmp_path / target), "--to", to)
        assert (code, err) == (0, "") and note in out
    assert vocabulary_of(model) == vocabulary_of(tmp_path / "there") == vocabulary_of(tmp_path / "back") == ROWS
    assert vocabulary_of(tmp_path) is None
    assert tokenizer_hash(model) == tokenizer_hash(tmp_path / "back")
    code, out, err = call(
        capsys, "generate", "--model", str(model), "--prompt", "ab", "--max-new-tokens", "8", "--json", "--log-probs"
    )
    answer = json.loads(out)
    assert (code, err) == (0, "") and max(answer["tokens"]) < len(LETTERS)  # a row without a token is not sampled
    assert [len(answer[name]) for name in ("tokens", "scores")] == [8, 8]
    data = tmp_path / "lambada.jsonl"
    data.write_text('{"text": "one two three"}\n{"text": "two one"}\n')
    assert call(capsys, "evaluate", "lambada", "--model", str(model), "--data", str(data))[0] == 0


def test_a_server_answers_with_a_smaller_tokenizer(model: Path) -> None:
    from gpt2train.convert.huggingface import read_model

    opened = read_model(model)
    server = prepare(decoder_of(opened, 2), load_tokenizer(model), ServeSettings(), "m")
    assert server.service.token_name(ROWS - 1) == ""
    answers = generate(opened, load_tokenizer(model), ["a"], SamplingSettings(max_new_tokens=4))
    assert len(answers[0].tokens) == 4


def test_a_larger_tokenizer_is_one_error_line(too_large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = too_large.parent / "lambada.jsonl"
    data.write_text('{"text": "one two three"}\n')
    for arguments in (
        ["generate", "--model", str(too_large), "--prompt", "a"],
        ["serve", "--model", str(too_large), "--port", "0"],
        ["evaluate", "lambada", "--model", str(too_large), "--data", str(data)],
        ["convert", str(too_large), str(too_large.parent / "none"), "--to", "gpt2train"],
        ["convert", str(too_large), str(too_large.parent / "none"), "--to", "huggingface"],
    ):
        code, _, err = call(capsys, *arguments)
        assert code == 2 and err.count("\n") == 1, arguments
        assert f"has {len(LETTERS) + 50} entries, the model {ROWS}; give the tokenizer" in err
    assert not (too_large.parent / "none").exists()


def test_further_training_has_the_rows_of_the_model(model: Path, tmp_path: Path) -> None:
    root = Folder(prepare_tokens(tmp_path / "data"))
    manifests = [need_manifest(root / step) for step in ("tokens", "tokenizer")]
    size = vocab_size(load_tokenizer((root / "tokenizer").path()))
    plain = resolved_config(root, *manifests, build(TrainSettings, TRAIN), root / "run", 1)
    assert plain.vocab == size
    settings = build(TrainSettings, TRAIN, {"checkpoints": {"init_from": str(model)}})
    assert resolved_config(root, *manifests, settings, root / "run", 1).vocab == max(size, ROWS)
    missing = build(TrainSettings, TRAIN, {"checkpoints": {"init_from": str(tmp_path / "none")}})
    assert resolved_config(root, *manifests, missing, root / "run", 1).vocab == size


PROMPTS = ["ab c", "Zürich <s>", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Llama's family; its first token decides much, so that a missing `<s>` is seen."""
    place = tmp_path_factory.mktemp("bos")
    source = folder_of(place / "t", POST_PROCESSORS["bos"][0])
    tokenizer = load_tokenizer(source)
    assert isinstance(tokenizer, Tokenizer)
    shape = Shape(vocab=tokenizer.get_vocab_size() + 5, layers=2, heads=2, hidden=32, context=64, family="llama")
    torch.manual_seed(1)
    weights = {name: torch.randn(size) * 0.3 for name, size in sizes(shape).items()}
    save_model(place / "model", LazyWeights(shape, in_memory(weights)), source)
    return place / "model"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, Tokenizer)
    with running(LocalDecoder(read_model(folder), 4), words=tokenizer) as found:
        yield found


def theirs_of(model: Any, tokenizer: Any, prompt: str, **options: Any) -> list[int]:
    """Greedy continuation by transformers. `<s>` in a prompt is text here, so its characters are given as ids."""
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt, split_special_tokens=True)["input_ids"][1:]]])
    options = {"do_sample": False, "max_new_tokens": 10, "pad_token_id": 0, "eos_token_id": 1} | options
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return list(found[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_greedy_continuation_is_that_of_transformers(folder: Path, theirs: tuple[Any, Any], prompt: str) -> None:
    model, tokenizer = read_model(folder), load_tokenizer(folder)
    settings = SamplingSettings(max_new_tokens=10, temperature=0)
    [answer] = generate(model, tokenizer, [prompt], settings)
    assert answer.prompt_tokens[0] == 0 not in answer.prompt_tokens[1:]
    assert list(answer.tokens) == theirs_of(*theirs, prompt)
    [ids] = encode_prompts(tokenizer, [prompt])
    beams = beam_search(decoder_of(model, 3), ids, BeamSettings(beams=3, max_new_tokens=6), tokenizer)
    assert list(beams[0].tokens) == theirs_of(*theirs, prompt, num_beams=3, max_new_tokens=6)


def test_an_empty_prompt_begins_a_document(folder: Path) -> None:
    [answer] = generate(read_model(folder), load_tokenizer(folder), [""], SamplingSettings(max_new_tokens=1))
    assert answer.prompt_tokens == (0,)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_server_puts_the_token_before_texts_but_not_before_ids(
    folder: Path, theirs: tuple[Any, Any], server: Running, prompt: str
) -> None:
    [ids] = encode_prompts(load_tokenizer(folder), [prompt])
    expected = theirs_of(*theirs, prompt)
    body = {"max_tokens": 10, "temperature": 0, "logprobs": 0, "echo": True}
    by_text = server.client.post("/v1/completions", json={"prompt": prompt, **body}).json()
    by_ids = server.client.post("/v1/completions", json={"prompt": ids, **body}).json()
    assert by_text["usage"] == by_ids["usage"] and by_text["usage"]["prompt_tokens"] == len(ids)
    one, other = by_text["choices"][0], by_ids["choices"][0]
    assert one["logprobs"]["token_logprobs"] == other["logprobs"]["token_logprobs"]
    assert one["logprobs"]["token_logprobs"][0] is None
    assert one["text"].startswith(prompt) and one["logprobs"]["text_offset"][:2] == [0, 0]
    assert len(one["logprobs"]["tokens"]) == len(ids) + len(expected)
    alone = server.client.post("/v1/completions", json={"prompt": ids[1:], **body}).json()
    assert alone["usage"]["prompt_tokens"] == len(ids) - 1
    for given in ({}, {"add_BOS": True}):  # which adds no second one
        asked = {"prompts": [prompt], "tokens_to_generate": 10, "top_k": 1, **given}
        answer = server.client.put("/api", json=asked).json()
        assert answer["text"][0].count("<s>") == 1 + prompt.count("<s>")
        assert len(answer["segments"][0]) == len(ids) + len(expected)


def test_scores_are_those_after_the_token(folder: Path, theirs: tuple[Any, Any]) -> None:
    scorer = Scorer(read_model(folder), load_tokenizer(folder))
    texts = ["ab c ab", "Zürich x"]
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([theirs[1](text)["input_ids"]])
        with torch.no_grad():
            logits = theirs[0](ids).logits[0].double().log_softmax(1)
        total += logits[:-1].gather(1, ids[0, 1:, None]).sum().item()
        count += ids.shape[1] - 1
    found = document_perplexity(scorer, texts)
    assert found["tokens"] == count and found["loss"] == pytest.approx(-total / count, abs=1e-5)
    assert found["definition"].startswith("each document after <s>;")
    assert wikitext_perplexity(scorer, texts[0])["tokens"] == len(theirs[1](texts[0])["input_ids"])
    for pairs in (openai_pairs, last_token_pairs, strict_pairs):
        assert all(pair.context[0] == 0 and pair.target for pair in pairs(scorer.tokenizer, [*texts, "x"]))
    assert math.isfinite(found["word_perplexity"])
