"""The tokenizer of a model folder in transformers: `AutoTokenizer` loads it and gives the same ids."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gpt2train.convert.hf_sentencepiece import tokenizer_json
from gpt2train.convert.huggingface import save_model
from gpt2train.data.encoder import PlainEncoder, Texts
from gpt2train.data.sentencepiece_model import MODEL, SentencePieceTokenizer
from gpt2train.data.template import encode_prompts, prefix_ids
from gpt2train.data.tokenizer import (
    encode_ordinary,
    end_of_text_id,
    end_token,
    kind_of,
    load_tokenizer,
    tokenizer_hash,
    vocab_size,
)
from gpt2train.data.tokenizer_reader import read_files
from gpt2train.model.families import Shape, sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tests.gpt2train.data.test_tokenizer_kinds import CORPUS, HARD, characters, script_texts

# Options of SentencePiece's trainer by name, and if the model becomes a tokenizer.json.
BYTES = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "llama": (BYTES | {"model_type": "bpe", "split_digits": True, "vocab_size": 330}, True),
    "trims spaces": ({"model_type": "bpe", "normalization_rule_name": "identity", "vocab_size": 90}, True),
    "no first space": (BYTES | {"model_type": "bpe", "add_dummy_prefix": False, "vocab_size": 330}, True),
    "unigram": (BYTES | {"model_type": "unigram", "vocab_size": 330}, True),
    "begins of byte names": (
        BYTES | {"model_type": "unigram", "vocab_size": 330, "texts": [*CORPUS, "<0x <0y"]},
        False,
    ),
    "normalised": ({"model_type": "bpe", "vocab_size": 90}, False),
    "symbols of the user": (BYTES | {"model_type": "bpe", "user_defined_symbols": "<sep>", "vocab_size": 330}, False),
    "space after": (BYTES | {"model_type": "bpe", "treat_whitespace_as_suffix": True, "vocab_size": 330}, False),
    "words": ({"model_type": "word", "vocab_size": 12, "hard_vocab_limit": False}, False),
}


def trained(options: dict[str, Any]) -> bytes:
    """A SentencePiece model by the library's own trainer."""
    sentencepiece, model = pytest.importorskip("sentencepiece"), io.BytesIO()
    texts, options = options.get("texts", CORPUS), {name: value for name, value in options.items() if name != "texts"}
    options = {"hard_vocab_limit": False, "model_writer": model, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts * 20), **options)
    return model.getvalue()


def model_folder(folder: Path, source: Path, rows: int = 0) -> Path:
    """A small model with a tokenizer, and with more rows than tokens."""
    shape = Shape(vocab=vocab_size(load_tokenizer(source)) + rows, layers=1, heads=2, hidden=8, context=64)
    weights = in_memory({name: torch.zeros(size) for name, size in sizes(shape).items()})
    save_model(folder, LazyWeights(shape, weights), source)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentencepiece_model_has_its_ids_in_transformers(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    sentencepiece = pytest.importorskip("sentencepiece")
    options, converted = KINDS[kind]
    source = tmp_path / "my.model"
    source.write_bytes(trained(options))
    folder = model_folder(tmp_path / "model", source)
    assert (folder / "tokenizer.json").exists() is converted
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(source))
    ours = load_tokenizer(folder)
    assert isinstance(ours, SentencePieceTokenizer)  # not the conversion
    assert tokenizer_hash(folder) == tokenizer_hash(source)
    special = ("<unk>", "<s>", "</s>")  # transformers finds these in a text

    @settings(max_examples=60)
    @given(characters() | st.sampled_from([*HARD, *CORPUS, " a", "a  b ", "1234 <sep>b"]))
    def check(text: str) -> None:
        ids = processor.encode(text)
        assert encode_ordinary(ours, [text])[0] == ids and not any(map(processor.is_control, ids))
        assert ours.decode(ids) == processor.decode(ids)
        if any(token in text for token in special):
            return
        assert theirs(text)["input_ids"] == ids
        if converted and options.get("byte_fallback"):
            assert theirs.decode(ids) == processor.decode(ids)

    check()
    assert vocab_size(ours) == processor.get_piece_size() and end_of_text_id(ours) == processor.eos_id()
    assert end_token(ours) == "</s>"
    assert kind_of(ours) == f"SentencePiece {'BPE' if options['model_type'] == 'bpe' else 'unigram'}"


@pytest.mark.parametrize("kind", ["llama", "normalised"])
def test_the_bos_of_a_sentencepiece_model_is_that_of_transformers(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    source = tmp_path / "llama"
    source.mkdir()
    (source / MODEL).write_bytes(trained(KINDS[kind][0]))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    folder = model_folder(model_folder(tmp_path / "first", source).with_name("second"), tmp_path / "first")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    assert prefix_ids(ours) == [theirs.bos_token_id] == [1] and theirs.eos_token_id == 2
    texts = ["The quick fox", " 北京 1", "a\nb"]
    assert theirs(texts)["input_ids"] == encode_prompts(ours, texts)
    assert json.loads((folder / "config.json").read_text())["bos_token_id"] == 1


def test_a_tokenizer_json_that_was_published_with_a_model_is_preferred(tmp_path: Path) -> None:
    """As in folders of Llama 2, which have both files without our key."""
    content = trained(KINDS["llama"][0])
    (tmp_path / MODEL).write_bytes(content)
    converted = tokenizer_json(content, [1])
    assert converted is not None
    (tmp_path / "tokenizer.json").write_text(converted)
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, Tokenizer) and prefix_ids(tokenizer) == [1]
    assert MODEL not in read_files(tmp_path / "tokenizer.json")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["t5", "bert-base-uncased", "bert-base-chinese", "smollm2", "trained bpe"])
def test_megabytes_of_text_have_the_same_ids_in_transformers(real_data: Path, tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    texts = list(script_texts(real_data))[::4]
    assert sum(len(text.encode()) for text in texts) >= 2_500_000
    source = real_data / "eval/tokenizers" / name
    if name == "trained bpe":
        pytest.importorskip("sentencepiece")
        source = tmp_path / "my.model"
        source.write_bytes(train_sentencepiece(iter(texts[::9]), 6000, "sentencepiece_bpe"))
    folder = model_folder(tmp_path / "model", source, rows=3)
    theirs, ours, plain = transformers.AutoTokenizer.from_pretrained(folder), load_tokenizer(folder), Texts.of(texts)
    assert theirs(texts)["input_ids"] == encode_prompts(ours, texts)
    published = load_tokenizer(source)
    expected = encode_ordinary(published, texts)
    assert theirs(texts, add_special_tokens=False)["input_ids"] == expected
    if name == "t5":  # by its library, and not its conversion
        processor = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(source / "spiece.model"))
        assert processor.encode(texts) == expected
    assert PlainEncoder(published)(plain).ids.tolist() == [number for ids in expected for number in ids]
