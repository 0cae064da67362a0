"""Model folders: weights in memory in Hugging Face's form, and every family with trained tokenizers for its peers."""

import gzip
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from torch import Tensor

from gpt2train.config.model import ModelSettings
from gpt2train.convert.gguf_file import write_gguf
from gpt2train.convert.gguf_tokenizer import PATTERNS
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.huggingface import imported, open_model, read_model, save_model
from gpt2train.convert.settings import Dtype
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.sentencepiece_model import MODEL
from gpt2train.data.tokenizer import END_OF_TEXT, TOKENIZER, load_tokenizer, save_tokenizer, vocab_size
from gpt2train.model.causal_lm import CausalLM, Shape
from gpt2train.model.families import EMBEDDING, sizes
from gpt2train.model.lazy_weights import LazyWeights, check_sizes, in_memory
from tasks.tokenizer.sentencepiece_training import train_sentencepiece
from tasks.tokenizer.step import with_sentinels
from tests.gpt2train.models import lively

PROMPTS = ["Article 1. All human", "Он сказал: «да»", "  two spaces\n\nand 1234567 lines\t"]
GQA: dict[str, Any] = {"kv_heads": 2}


def to_huggingface(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to Hugging Face's names and layouts, without the padding of the vocabulary."""
    check_sizes({name: tuple(tensor.shape) for name, tensor in weights.items()}, sizes(shape), "the checkpoint")
    layout = layout_of(shape.family)
    pairs = layout.names(shape).items()
    return {theirs: layout.exported(ours, weights[ours], shape).contiguous() for ours, theirs in pairs}


def from_huggingface(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to our names and layouts in float32."""
    return imported(in_memory(tensors), shape, "the model").read()


def write_model(
    folder: str | PathLike[str],
    weights: Mapping[str, Tensor],
    shape: Shape,
    tokenizer: str | PathLike[str],
    dtype: Dtype = "float32",
) -> None:
    """Write weights in memory as a model folder."""
    save_model(Path(folder), LazyWeights(shape, in_memory(weights)), Path(tokenizer), dtype)


def stirred(peer: Any, noise: float = 0.1) -> Any:
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return peer.eval()


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def difference(folder: Path, peer: Any, length: int = 64) -> float:
    """Largest difference of a logit, in standard deviations of the logits."""
    vocab = peer.config.vocab_size
    tokens = torch.randint(vocab, (3, length), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = read_model(folder)(tokens)[..., :vocab], peer(tokens).logits
    return float((ours - theirs).abs().max() / theirs.std())


def write(model: CausalLM, folder: Path, bpe: Path) -> Path:
    """The model as a folder that transformers loads."""
    write_model(folder, dict(model.state_dict()), model.shape, bpe)
    return folder


def write_tokenizer(folder: Path, entries: int) -> Path:
    """Write a tokenizer of single letters and `<|endoftext|>`."""
    folder.mkdir()
    letters = [chr(0x100 + number) for number in range(entries - 1)]
    save_tokenizer(folder, {letter: number for number, letter in enumerate([*letters, END_OF_TEXT])}, [])
    return folder


def split_as_qwen(folder: Path) -> None:
    """Give a tokenizer Qwen's normaliser and pattern."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    pattern = next(pattern for pattern, (name, _) in PATTERNS.items() if name == "qwen2")
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.save(str(folder / TOKENIZER))


def passages(data: Path, count: int = 60) -> list[str]:
    with gzip.open(data / "lang/udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:300] for line in file]
    return texts[:: len(texts) // count][:count]


def write_trained(folder: Path, algorithm: str, texts: list[str]) -> Path:
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


def write_random(folder: Path, tokenizer: Path, family: str, options: dict[str, Any], **more: int) -> Shape:
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
