"""Model folders of every family with trained tokenizers, for the tests of programs that load them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.config.model import ModelSettings
from gpt2train.convert.gguf_file import write_gguf
from gpt2train.convert.huggingface import open_model, save_model
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.sentencepiece_model import MODEL
from gpt2train.data.tokenizer import load_tokenizer, save_tokenizer, vocab_size
from gpt2train.model.causal_lm import Shape
from gpt2train.model.families import EMBEDDING
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tasks.tokenizer.step import with_sentinels
from tests.gpt2train.convert.model_folders import split_as_qwen
from tests.gpt2train.models import lively

PROMPTS = ["Article 1. All human", "Он сказал: «да»", "  two spaces\n\nand 1234567 lines\t"]
GQA: dict[str, Any] = {"kv_heads": 2}


def passages(data: Path, count: int = 60) -> list[str]:
    with gzip.open(data / "lang/udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:300] for line in file]
    return texts[:: len(texts) // count][:count]


def write_tokenizer(folder: Path, algorithm: str, texts: list[str]) -> Path:
    """A tokenizer trained as the flow does; with the algorithm qwen2, one that normalises and splits as Qwen's."""
    folder.mkdir()
    if algorithm in ("bpe", "bpe with sentinels", "qwen2"):
        vocab, merges = train_bpe(iter(texts), 800)
        save_tokenizer(folder, with_sentinels(vocab, 10) if "sentinels" in algorithm else vocab, merges)
        if algorithm == "qwen2":
            split_as_qwen(folder)
    else:
        pytest.importorskip("sentencepiece")
        (folder / MODEL).write_bytes(train_sentencepiece(iter(texts), 900, algorithm))  # type: ignore[arg-type]
    return folder


def write_model(folder: Path, tokenizer: Path, family: str, options: dict[str, Any], **more: int) -> Shape:
    """A model folder of random weights, with two rows more than tokens."""
    sizes = {"layers": 2, "heads": 4, "hidden": 64, "context": 128} | more
    settings = ModelSettings.model_validate({"family": family, "options": options, **sizes})
    shape = settings.shape(vocab_size(load_tokenizer(tokenizer)) + 2)
    model = lively(shape, noise=0.1)
    if family == "t5":  # its embedding is so large that a tied head repeats the last token
        model.get_parameter(EMBEDDING).mul_(0.1)
    save_model(folder, LazyWeights(shape, in_memory(dict(model.state_dict()))), tokenizer)
    return shape


def read_gguf(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    gguf = pytest.importorskip("gguf", reason="needs the extra gguf")
    reader = gguf.GGUFReader(file)
    return {key: field.contents() for key, field in reader.fields.items()}, {t.name: t for t in reader.tensors}


def export_folder(folder: Path, file: Path, **kind: Any) -> tuple[str, ...]:
    """Write a GGUF file of a model folder; the notes of the export."""
    pytest.importorskip("gguf", reason="needs the extra gguf")
    return write_gguf(file, open_model(folder), folder, **kind)


def check_continuation(model: Any, answer: Any, theirs: Sequence[int]) -> None:
    """Check that a peer continues a prompt as the model does, up to a token between whose logits rounding decides."""
    ours = list(answer.tokens)
    differ = [at for at, (own, other) in enumerate(zip(ours, theirs, strict=False)) if own != other]
    if not differ:
        assert ours == theirs
        return
    first = differ[0]
    with torch.no_grad():
        logits = model(torch.tensor([[*answer.prompt_tokens, *ours[:first]]]))[0, -1]
    assert logits[ours[first]] - logits[theirs[first]] < 1e-3 * logits.std(), (first, ours, theirs)
