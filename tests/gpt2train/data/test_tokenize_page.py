"""The commands of docs/data/tokenize.md run as they stand there, and the tokenizer goes along into models."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from flows.settings import DataprepSettings
from gpt2train.cli import app, run_command
from gpt2train.convert.from_weights import write_checkpoint
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.convert.opened_source import open_source
from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer, save_tokenizer, tokenizer_hash, vocab_size
from gpt2train.errors import UserError
from gpt2train.inference.generate import SamplingSettings, generate
from gpt2train.model.families import Shape, sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tests.gpt2train.data.test_tokenize_files import SAMPLE, owt
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.data.test_tokenizer_kinds import CORPUS, WORDPIECE, unigram_json, wordpiece_folder

PAGE = Path(__file__).parents[3] / "docs/data/tokenize.md"


def commands() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.json").write_text(SAMPLE)
    (tmp_path / "openwebtext.tar.xz").write_bytes(owt([b"one page", b"another"]))
    (tmp_path / "gpt2-tokenizer").mkdir()
    save_tokenizer(tmp_path / "gpt2-tokenizer", *small_tables())
    first, second, flow = commands()
    for command in (first, second):
        assert command[0] == "gpt2train" and run_command(app, command[1:]) == 0
    assert [len(IndexedDataset(prefix)) for prefix in ("tokens/sample", "owt/tokens")] == [2, 2]
    # The flow takes minutes; tests/tasks/tokenizer runs the step. Its flags are settings.
    assert flow[:3] == ["python", "-m", "flows.dataprep"]
    given = dict(zip(flow[7::2], flow[8::2], strict=True))
    settings = {name.removeprefix("--tokenizer.").replace("-", "_"): value for name, value in given.items()}
    assert DataprepSettings.model_validate({"tokenizer": settings}).tokenizer.algorithm == "sentencepiece_unigram"


@pytest.mark.parametrize("kind", ["wordpiece", "unigram json", "sentencepiece"])
def test_a_tokenizer_goes_along_into_models_and_through_convert(tmp_path: Path, kind: str) -> None:
    if kind == "wordpiece":
        source = wordpiece_folder(tmp_path / "w", WORDPIECE)
    elif kind == "unigram json":
        source = unigram_json(tmp_path / "u")
    else:
        pytest.importorskip("sentencepiece")
        source = tmp_path / "my.model"
        source.write_bytes(train_sentencepiece(iter(CORPUS * 20), 330, "sentencepiece_bpe"))
    tokenizer = load_tokenizer(source)
    shape = Shape(vocab=vocab_size(tokenizer), layers=1, heads=2, hidden=8, context=64)
    torch.manual_seed(1)
    weights = LazyWeights(shape, in_memory({name: torch.randn(size) * 0.1 for name, size in sizes(shape).items()}))
    model = tmp_path / "model"
    save_model(model, weights, source)
    again = tmp_path / "again"
    write_checkpoint(tmp_path / "checkpoint", open_model(model), model)
    opened = open_source(tmp_path / "checkpoint")
    assert opened.tokenizer is not None
    save_model(again, opened.weights, opened.tokenizer)
    assert tokenizer_hash(source) == tokenizer_hash(model) == tokenizer_hash(again)
    assert json.loads((model / "config.json").read_text())["vocab_size"] == shape.vocab
    sampling = SamplingSettings(max_new_tokens=20, seed=1)
    answers = generate(read_model(again), load_tokenizer(again), ["ab", ""], sampling)
    assert all(answer.text or answer.stopped == "end" for answer in answers)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    assert theirs.encode("ab a b", add_special_tokens=False) == encode_ordinary(tokenizer, ["ab a b"])[0]
    other = Shape(vocab=shape.vocab - 1, layers=1, heads=2, hidden=8, context=64)
    sized = LazyWeights(other, in_memory({name: torch.zeros(size) for name, size in sizes(other).items()}))
    with pytest.raises(UserError, match="entries, the model"):
        save_model(tmp_path / "none", sized, source)
