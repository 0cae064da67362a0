"""Sequence classifiers: logits, loss and gradients equal those of transformers; folders go in both directions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.checkpoint.store import open_weights
from gpt2train.convert.from_weights import write_checkpoint
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.convert.merge import merge
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import CausalLM, Shape, build_model
from gpt2train.model.init import initialise
from tests.gpt2train.convert.model_folders import edit, stirred, to_huggingface, write_model, write_tokenizer
from tests.gpt2train.jobs import VOCAB

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
LLAMA = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 72, "max_position_embeddings": 64}
LLAMA |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", SIZES | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "llama": ("Llama", LLAMA),
    "llama, tied": ("Llama", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", LLAMA | {"head_dim": 16}),
}
PAD = VOCAB - 1


def peer_of(kind: str, folder: Path, labels: int) -> Any:
    name, fields = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**fields, num_labels=labels, pad_token_id=PAD)
    peer = stirred(getattr(transformers, f"{name}ForSequenceClassification")(config))
    peer.save_pretrained(folder)
    return peer


def padded_batch(labels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens with padding on the right, lengths and targets of six samples, one as long as the batch."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.tensor([3, 17, 1, 24, 9, 5])
    tokens = torch.randint(PAD, (6, 24), generator=generator)
    tokens[torch.arange(24) >= lengths[:, None]] = PAD
    return tokens, lengths, torch.randint(labels, (6,), generator=generator)


@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients_equal_those_of_transformers(kind: str, labels: int, tmp_path: Path) -> None:
    peer = peer_of(kind, tmp_path, labels)
    ours: CausalLM = read_model(tmp_path, classifier=True).requires_grad_(True)
    tokens, lengths, targets = padded_batch(labels)
    theirs = peer(tokens, attention_mask=(tokens != PAD).long(), labels=targets)
    torch.testing.assert_close(ours(tokens, lengths=lengths), theirs.logits, atol=1e-5, rtol=1e-5)
    loss = ours(tokens, targets, lengths=lengths) / len(targets)
    torch.testing.assert_close(loss, theirs.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    theirs.loss.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    given = {name: parameter.grad for name, parameter in peer.named_parameters()}
    torch.testing.assert_close(gradients["score.weight"], given["score.weight"], atol=1e-5, rtol=1e-5)
    # Every other one, in the names and layouts of transformers: the padding of the vocabulary has no gradient.
    named = to_huggingface({name: grad for name, grad in gradients.items() if grad is not None}, ours.shape)
    assert named.keys() == given.keys()
    for name, gradient in named.items():
        torch.testing.assert_close(gradient, given[name], atol=1e-5, rtol=1e-5, msg=name)


def test_an_ignored_sample_adds_nothing() -> None:
    shape = Shape(VOCAB, 2, 2, 32, 32, labels=3)
    model = initialise(build_model(shape), 1)
    tokens, lengths, targets = padded_batch(3)
    some = model(tokens[:2], targets[:2], lengths=lengths[:2])
    targets[2:] = -100
    torch.testing.assert_close(model(tokens, targets, lengths=lengths), some)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_written_here_is_loaded_by_transformers(kind: str, tmp_path: Path) -> None:
    peer = peer_of(kind, tmp_path / "theirs", 3)
    weights = replace(open_model(tmp_path / "theirs"), labels=("no", "maybe", "yes"))
    save_model(tmp_path / "ours", weights, write_tokenizer(tmp_path / "bpe", VOCAB))
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    assert type(loaded) is type(peer) and loaded.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    assert loaded.config.label2id["yes"] == 2 and loaded.config.pad_token_id == PAD
    tokens, _, targets = padded_batch(3)
    with torch.no_grad():
        expected = peer(tokens, labels=targets)
        found = loaded(tokens, labels=targets)
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.loss, expected.loss)
    assert open_model(tmp_path / "ours").labels == ("no", "maybe", "yes")
    assert not (tmp_path / "ours/generation_config.json").exists()


def test_names_of_classes_are_kept_through_a_converted_checkpoint(tmp_path: Path) -> None:
    """Folder -> checkpoint to train from -> merged folder."""
    peer_of("gpt2", tmp_path / "two", 2)
    edit(tmp_path / "two", id2label=None, label2id=None)  # as transformers writes two classes of no names
    assert open_model(tmp_path / "two").labels == ("LABEL_0", "LABEL_1")
    names, bpe = ("nein", "vielleicht", 'ja – "sicher"'), write_tokenizer(tmp_path / "bpe", VOCAB)
    peer_of("gpt2", tmp_path / "theirs", 3)
    save_model(tmp_path / "folder", replace(open_model(tmp_path / "theirs"), labels=names), bpe)
    write_checkpoint(tmp_path / "checkpoint", open_model(tmp_path / "folder"), tmp_path / "folder")
    assert open_weights(tmp_path / "checkpoint").labels == names
    merge(tmp_path / "checkpoint", tmp_path / "merged")
    assert open_model(tmp_path / "merged").labels == names
    config = transformers.AutoConfig.from_pretrained(tmp_path / "merged")
    assert config.id2label == dict(enumerate(names)) and config.label2id[names[2]] == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label does not name the classes 0, 1, …"),
        ({"id2label": ["a", "b"]}, "id2label does not name the classes 0, 1, …"),
        ({"id2label": {}}, "id2label does not name the classes 0, 1, …"),
        ({"id2label": dict(zip("0123", "abcd", strict=True))}, "score.weight has the shape (3, 48); expected (4, 48)"),
        ({"id2label": None, "num_labels": "x"}, "num_labels is x; expected a whole number"),
        ({"architectures": ["GPT2LMHeadModel"]}, "score"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    peer_of("gpt2", tmp_path, 3)
    edit(tmp_path, **changes)
    with pytest.raises(UserError) as refused:
        open_model(tmp_path)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_each_kind_is_refused_where_the_other_is_needed(tmp_path: Path) -> None:
    peer_of("gpt2", tmp_path / "classifier", 3)
    with pytest.raises(UserError, match="is a classifier of 3 classes and predicts no tokens"):
        read_model(tmp_path / "classifier")
    shape = Shape(VOCAB, 2, 2, 32, 32)
    plain = dict(initialise(build_model(shape), 1).named_parameters())
    write_model(tmp_path / "lm", plain, shape, write_tokenizer(tmp_path / "bpe", VOCAB))
    with pytest.raises(UserError, match="is a language model, not a classifier"):
        read_model(tmp_path / "lm", classifier=True)
