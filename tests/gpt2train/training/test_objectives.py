"""Objectives: classification, answers and a T5's spans: what is in their loss, and refusals (layouts: parity/)."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import Field

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.data.dataset import Dataset, open_data
from gpt2train.data.indexed import bin_path, idx_path, write_index
from gpt2train.data.span_data import SpanData, span_data
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import build_model
from gpt2train.model.classification import class_counts
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE
from gpt2train.model.objectives import OBJECTIVES, Objective, classification_metrics
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext
from gpt2train.settings import Settings
from gpt2train.train import train
from tests.gpt2train.data.test_span_corruption import restored
from tests.gpt2train.jobs import (
    SENTINELS,
    VOCAB,
    curve,
    make,
    make_t5,
    weights,
    write_tokens,
)

CONTEXT = 16


def write_documents(prefix: Path, documents: list[list[list[int]]]) -> Path:
    prefix.parent.mkdir(exist_ok=True)
    sequences = [np.asarray(part, dtype="<u2") for document in documents for part in document]
    bin_path(prefix).write_bytes(b"".join(part.tobytes() for part in sequences))
    starts = np.cumsum([0, *map(len, documents)])
    write_index(idx_path(prefix), [len(part) for part in sequences], "<u2", starts)
    return prefix


def labelled(folder: Path, labels: int = 3, samples: int = 50) -> Path:
    """Samples whose class is the first token modulo the number of classes, of lengths from 1 to the context."""
    rng = np.random.Generator(np.random.Philox(7))
    for name, count in (("train", samples), ("valid", 11)):
        documents = []
        for _ in range(count):
            tokens = rng.integers(VOCAB, size=int(rng.integers(1, CONTEXT + 1))).tolist()
            documents.append([tokens, [tokens[0] % labels]])
        write_documents(folder / name, documents)
    return folder


def answers(folder: Path) -> Path:
    """Prompts and answers of one and two turns, the answer counting on from the prompt."""
    rng = np.random.Generator(np.random.Philox(8))
    for name, count in (("train", 50), ("valid", 11)):
        documents = []
        for number in range(count):
            turns = []
            for _ in range(1 + number % 2):
                first = int(rng.integers(VOCAB - 9))
                turns += [[first, first + 1][: 1 + number % 3 % 2], [first + 2, first + 3, VOCAB - 1]]
            documents.append(turns)
        write_documents(folder / name, documents)
    return folder


CLASSES: dict[str, Any] = {
    "objective": {"name": "classification", "options": {"labels": json.dumps(["no", "maybe", "yes"])}},
    "model": {"labels": 3},
}


def classifier(tokens: Path, output: Path, **changes: Any) -> RunConfig:
    return make(tokens, output, **CLASSES | changes | {"model": CLASSES["model"] | changes.get("model", {})})


def test_the_loss_of_a_step_is_the_mean_over_its_samples(tmp_path: Path, alone: DistContext) -> None:
    """Of the first step, by the plain formula; a start from a language model has its blocks and a new output layer."""
    (tmp_path / "lm").mkdir()
    train(make(write_tokens(tmp_path / "lm"), tmp_path / "pretrained", steps=2, schedule={"warmup": 1}), alone)
    tokens = labelled(tmp_path / "tokens")
    begin = {"checkpoints": {"init_from": str(tmp_path / "pretrained"), "restore": "weights"}}
    config = classifier(tokens, tmp_path / "run", steps=1, schedule={"warmup": 0}, **begin)
    train(config, alone)

    model = initialise(build_model(config.shape), config.seed)
    before = weights(tmp_path / "pretrained")
    model.load_state_dict(before, strict=False)
    data = open_data(config, "train")
    assert data is not None
    batch = data.batch(range(8))
    logits = torch.stack([
        model(batch.tokens[row : row + 1, : int(length)])[0] for row, length in enumerate(batch.extra["lengths"])
    ])  # fmt: skip
    assert curve(tmp_path / "run")[0] == pytest.approx(F.cross_entropy(logits, batch.targets).item(), rel=1e-5)
    [row] = [row for row in read_metrics(tmp_path / "run") if "valid_loss" in row]
    assert row["valid_accuracy"] in [count / 7 for count in range(8)]

    # A language model does not start from a classifier, nor a classifier from one of other classes.
    wrong = {"checkpoints": {"init_from": str(tmp_path / "run"), "restore": "weights"}}
    with pytest.raises(UserError, match=r"another model\.labels \(3 there, 0 now\)"):
        train(make(tmp_path / "lm", tmp_path / "wrong", **wrong), alone)
    with pytest.raises(UserError, match=r"another model\.labels \(3 there, 4 now\)"):
        train(classifier(tokens, tmp_path / "wrong", model={"labels": 4}, **wrong), alone)


@given(st.data())
def test_every_sample_is_read_once_an_epoch_and_answers_alone_are_in_the_loss(data: Any) -> None:
    token = st.integers(0, VOCAB - 1)
    turn = st.tuples(st.lists(token, max_size=4), st.lists(token, min_size=1, max_size=4))
    documents = data.draw(st.lists(st.lists(turn, min_size=1, max_size=2), min_size=1, max_size=9))
    with tempfile.TemporaryDirectory() as folder:
        flat = [[list(part) for turn in document for part in turn] for document in documents]
        assume(any(target != -100 for document in flat for target in _plain(document)[1]))
        write_documents(Path(folder) / "train", flat)
        config = make(Path(folder), Path(folder) / "run", objective={"name": "answers"}, data={"valid": None})
        found = open_data(config, "train")
        assert found is not None and found.per_epoch == len(documents)
        epochs = [found.batch(range(n * len(documents), (n + 1) * len(documents))) for n in range(2)]
        expected = sorted(_plain(document) for document in flat)
        for number, batch in enumerate(epochs):
            assert sorted(zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True)) == expected
            counted = found.counted(range(number * len(documents), (number + 1) * len(documents)))
            assert counted == max(1, int((batch.targets != -100).sum()))
        found.check()


def _plain(document: list[list[int]]) -> tuple[list[int], list[int]]:
    pairs = [(token, number % 2 == 1) for number, part in enumerate(document) for token in part]
    tokens = [token for token, _ in pairs[:-1]]
    targets = [token if answer else -100 for token, answer in pairs[1:]]
    rest = CONTEXT - len(tokens)
    return tokens + [0] * rest, targets + [-100] * rest


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_accuracy_and_f1_are_those_of_the_plain_formula(labels: int, count: int, seed: int, pad: bool) -> None:
    rng = np.random.Generator(np.random.Philox(seed))
    predicted, actual = rng.integers(labels, size=count), rng.integers(labels, size=count)
    logits = F.one_hot(torch.from_numpy(np.append(predicted, 0)), labels).float()
    targets = torch.from_numpy(np.append(actual, -100))
    if not pad:
        logits, targets = logits[:-1], targets[:-1]
    scores = classification_metrics(class_counts(logits, targets).tolist(), count)
    f1 = []
    for label in range(labels):
        right = int(((predicted == label) & (actual == label)).sum())
        both = int((predicted == label).sum() + (actual == label).sum())
        f1.append(2 * right / both if both else 0.0)
    assert scores["accuracy"] == pytest.approx(float((predicted == actual).mean()))
    assert scores["f1"] == pytest.approx(f1[1] if labels == 2 else sum(f1) / labels)


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([[[1, 2], [3]]], "sample 0 has the label 3, but model.labels is 3"),
        ([[[1] * 17, [0]]], "sample 0 has 17 tokens, above 16"),
        ([[[1, VOCAB], [0]]], "has the token id 300, but the vocabulary has 300"),
        ([[[1], [0], [1]]], "is not labelled samples"),
        ([[[], [0]]], "is not labelled samples"),
        ([], "has no samples"),
    ],
)
def test_wrong_samples_fail(tmp_path: Path, alone: DistContext, documents: list[list[list[int]]], said: str) -> None:
    write_documents(tmp_path / "train", documents)
    config = classifier(tmp_path, tmp_path / "run", data={"valid": None})
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        train(config, alone)


def test_wrong_objectives_are_refused(tmp_path: Path, alone: DistContext) -> None:
    tokens = labelled(tmp_path / "tokens")
    with pytest.raises(UserError, match=r"model\.labels 3 is for classifiers; the objective next_token predicts"):
        classifier(tokens, tmp_path / "run", objective={"name": "next_token", "options": {}})
    with pytest.raises(UserError, match=r"model\.labels is 0, but a classification needs 2 classes"):
        train(classifier(tokens, tmp_path / "run", model={"labels": 0}), alone)
    with pytest.raises(UserError, match="the names of the classes are a JSON list"):
        classifier(tokens, tmp_path / "run", objective={"name": "classification", "options": {"labels": "[1]"}})
    (tmp_path / "lm").mkdir()
    write_documents(tmp_path / "lm" / "train", [[[1, 2], []], [[], [3]]])
    with pytest.raises(UserError, match="has no token of an answer, so that nothing is learned"):
        train(make(tmp_path / "lm", tmp_path / "run", objective={"name": "answers"}), alone)
    answered, empty = [[1, 2], [3]], [[1, 2], []]
    write_documents(tmp_path / "lm/train", [answered] * 8)
    write_documents(tmp_path / "lm/valid", [*[empty] * 7, answered])
    with pytest.raises(UserError, match="valid: the first 7 samples have no token of an answer"):
        train(make(tmp_path / "lm", tmp_path / "run", objective={"name": "answers"}), alone)
    with pytest.raises(UserError, match="is not prompts and answers"):
        train(make(write_tokens(tmp_path / "lm"), tmp_path / "run", objective={"name": "answers"}), alone)


class Options(Settings):
    smoothing: float = Field(0.0, ge=0, lt=1)


def no_data(config: RunConfig, part: str) -> Dataset | None:
    return None


@pytest.fixture
def own_objectives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(OBJECTIVES, "_entries", dict(OBJECTIVES._entries))
    place = f"{__name__}:"
    OBJECTIVES.register("own", Objective(data=f"{place}packed_data", options=Options))
    OBJECTIVES.register("nothing", Objective(data=f"{place}no_data"))
    OBJECTIVES.register("missing", Objective(data=f"{place}nowhere"))
    yield


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "unknown"}, r"objective.name: there is no objective 'unknown'; choose from"),
        ({"name": "own", "options": {"smoothing": 1}}, r"objective\.options: objective own: smoothing: "),
        ({"name": "own", "options": {"smooth": 0.1}}, r"objective own: unknown setting 'smooth'; "),
        ({"name": "next_token", "options": {"x": 1}}, r"objective next_token: unknown setting 'x'; "),
        ({"name": "nothing"}, r"the objective nothing has no training data; its `data` returned None"),
        ({"name": "missing"}, r"cannot import .*:nowhere, which .* names \(AttributeError"),
    ],
)
def test_wrong_objectives_of_ones_own_are_refused_in_one_line(
    own_objectives: None, tokens: Path, tmp_path: Path, alone: DistContext, objective: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        train(make(tokens, tmp_path / "run", objective=objective), alone)
    assert "\n" not in str(caught.value)


END, START = VOCAB, VOCAB + 1
WHOLE = VOCAB + 2 + SENTINELS


def opened(config: RunConfig, part: str = "train") -> SpanData:
    data = span_data(config, part)
    assert data is not None
    return data


def write_tokenizer(folder: Path, sentinels: int = SENTINELS) -> Path:
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


def test_family_fits_objective_and_checkpoint(tokens: Path, alone: DistContext, tmp_path: Path) -> None:
    config = make_t5(tokens, tmp_path / "run").model_dump()
    for key, name, other, said in (
        ("objective", "name", "next_token", 'set objective.name = "span_corruption"'),
        ("model", "family", "gpt2", 'set model.family = "t5"'),
    ):
        with pytest.raises(ValueError, match=said):
            RunConfig.model_validate({**config, key: {**config[key], name: other, "options": {}}})
    short: dict[str, Any] = {"steps": 2, "schedule": {"warmup": 1}}
    train(make_t5(tokens, tmp_path / "run", **short), alone)
    with pytest.raises(UserError, match=r"another model\.options\.activation \(gated-gelu there, relu now\)"):
        train(make_t5(tokens, tmp_path / "run", **short, model={"options": {"activation": "relu"}}), alone)
