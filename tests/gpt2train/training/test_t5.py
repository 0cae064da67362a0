"""Training of a T5: samples, resume, merge with equal logits, shared parameters that drift, refusals in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.span_data import SpanData, span_data
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.loss import IGNORE
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.data.test_span_corruption import restored
from tests.gpt2train.jobs import VOCAB, finish, start_alone, write
from tests.gpt2train.parity.t5_runs import SENTINELS, make_t5

END, START = VOCAB, VOCAB + 1
WHOLE = VOCAB + 2 + SENTINELS


def opened(config: RunConfig, part: str = "train") -> SpanData:
    data = span_data(config, part)
    assert data is not None
    return data


def write_tokenizer(folder: Path, sentinels: int = SENTINELS) -> Path:
    """A tokenizer of letters for the small tokens, with an end, padding and sentinels."""
    folder.mkdir(parents=True)
    names = [chr(0x100 + number) for number in range(WHOLE - 2 - sentinels)]
    names += [END_OF_TEXT, "<pad>", *(f"<extra_id_{number}>" for number in reversed(range(sentinels)))]
    save_tokenizer(folder, {name: number for number, name in enumerate(names)}, [])
    return folder


def test_samples_come_back_from_the_batches(tokens: Path, tmp_path: Path) -> None:
    config = make_t5(tokens, tmp_path / "run")
    data = opened(config)
    batch = data.batch(range(5, 11))
    packed = data.packed.batch(range(5, 11)).tokens
    sentinels = [WHOLE - 1 - number for number in range(SENTINELS)]
    assert batch.tokens.shape == (6, 24) and batch.targets.shape == batch.extra["decoder_tokens"].shape == (6, 16)
    assert set(batch.extra) == {"decoder_tokens"}
    for row in range(6):
        target = batch.targets[row][batch.targets[row] != IGNORE]
        assert restored(batch.tokens[row].tolist(), target.tolist(), sentinels) == packed[row].tolist()
        assert batch.extra["decoder_tokens"][row, 0] == START and target[-1] == batch.tokens[row, -1] == END
        assert torch.equal(batch.extra["decoder_tokens"][row, 1 : len(target)], target[:-1])
    assert data.counted(range(5, 11)) == int((batch.targets != IGNORE).sum())
    padding = data.batch(range(9, 13), until=11)
    assert (padding.targets[2:] == IGNORE).all() and torch.equal(padding.tokens[:2], batch.tokens[4:])


def test_prefixes_are_continued(tokens: Path, tmp_path: Path) -> None:
    data = opened(make_t5(tokens, tmp_path / "run", objective={"options": {"task": "prefix"}}))
    batch, packed = data.batch(range(8)), data.packed.batch(range(8)).tokens
    lengths = batch.extra["lengths"]
    assert len(set(lengths.tolist())) > 2
    for row, length in enumerate(lengths.tolist()):
        target = batch.targets[row][batch.targets[row] != IGNORE]
        assert batch.tokens[row, length - 1] == target[-1] == END
        assert torch.equal(torch.cat((batch.tokens[row, : length - 1], target[:-1])), packed[row])
    assert data.counted(range(8)) == int((batch.targets != IGNORE).sum())


def test_samples_depend_on_seed_and_index_alone(tokens: Path, tmp_path: Path) -> None:
    def read(seed: int, part: str = "train") -> Batch:
        return opened(make_t5(tokens, tmp_path / "run", seed=seed), part).batch(range(4))

    first, again, other = read(1), read(1), read(2)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens, other.tokens)
    assert torch.equal(read(1, "valid").tokens, read(1, "valid").tokens)


NAMED = {"objective": {"options": {"sentinels": "<extra_id_{}>"}}}
INSIDE = {"vocab": VOCAB, "objective": {"options": {"end_id": 1}}, "model": {"options": {"start_id": 0}}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"parallel": {"tp": 3}}, "parallel.tp 3 does not divide the size 80 of blocks.0.gate.weight"),
    ({"parallel": {"tp": 4}, "model": {"options": {"inner": 42}}}, "does not divide the size 42 of blocks.0"),
    ({"parallel": {"tp": 4}, "model": {"options": {"decoder_context": 18}}}, "the 18 tokens of the decoder"),
    ({"parallel": {"pp": 6}}, "6 stages, but there are only 5 layers"),
    ({"model": {"options": {"decoder_context": 8}}}, "take 13 tokens, more than decoder_context 8"),
    ({"objective": {"options": {"sentinel_count": 1}}}, "3 spans, more than the 1 sentinels"),
    ({"objective": {"options": {"sentinels": "<s>"}}}, "has no {} for the number"),
    ({"model": {"context": 2}}, "model.context 2 is too short for a span"),
    ({"objective": {"options": {"noise": 0.2}}}, "unknown setting|noise"),
    (NAMED, "need the run's tokenizer, and .* have none beside them; copy it there as tokenizer/"),
    ({"objective": {"options": {"sentinels": "<s_{}>"}}}, "has no token <s_0> to stand for a span"),
    (NAMED, "has no token <extra_id_19> to stand for a span"),
    ({"objective": {"options": {"sentinel_count": 60}}}, "among them are the tokens that begin or end a"),
    ({"objective": {"options": {"end_id": 400}}}, "the end_id 400 is outside the vocabulary of 322 tokens"),
    (INSIDE, "is a sentinel"),
    ({"documents": {"mask_documents": True}}, "documents.mask_documents is for next-token prediction"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str, tokens: Path, tmp_path: Path) -> None:
    if "has no token" in message:
        write_tokenizer(tmp_path / "run/tokenizer", SENTINELS - ("19" in message))
    with pytest.raises(UserError, match=message) as caught:
        config = make_t5(tokens, tmp_path / "run", **changes)
        opened(config).check()
        Layout.of(config, config.parallel.tp * config.parallel.pp)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("objective", {"name": "next_token", "options": {}}, 'set objective.name = "span_corruption"'),
        ("model", {"family": "gpt2", "options": {}}, 'set model.family = "t5"'),
    ],
)
def test_family_fits_objective(key: str, changes: dict[str, Any], message: str, tokens: Path, tmp_path: Path) -> None:
    config = make_t5(tokens, tmp_path / "run").model_dump()
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({**config, key: {**config[key], **changes}})


@pytest.mark.slow
def test_a_checkpoint_of_another_family_is_refused(tokens: Path, alone: DistContext, tmp_path: Path) -> None:
    short: dict[str, Any] = {"steps": 2, "schedule": {"warmup": 1}}
    train(make_t5(tokens, tmp_path / "run", **short), alone)
    other = make_t5(tokens, tmp_path / "run", **short, model={"options": {"activation": "relu"}})
    code, _, err = finish(start_alone(write(other)))
    assert code == 2 and "another model.options.activation (gated-gelu there, relu now)" in err
