"""A tokenizer with fewer tokens than the model has rows (Qwen's), or with more: convert, generate, serve, evaluate."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings
from gpt2train.convert.detect import vocabulary_of
from gpt2train.convert.huggingface import save_model
from gpt2train.data.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash, vocab_size
from gpt2train.inference.decoder import decoder_of
from gpt2train.inference.generate import SamplingSettings, generate
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.serve.server import prepare
from gpt2train.serve.settings import ServeSettings
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, need_manifest
from tasks.train.step import resolved_config
from tests.flows.small_tokens import TRAIN, prepare_tokens
from tests.gpt2train.serve.local_server import LETTERS

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
