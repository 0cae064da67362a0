"""Megatron-LM's checkpoints: read from trees that the tests write themselves, written, and read back."""

import argparse
import enum
import json
import pickle
import random
import sys
import tempfile
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.convert.detect import detect
from gpt2train.convert.megatron import ALLOWED, open_megatron
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.convert.safe_pickle import read_pickle
from gpt2train.errors import UserError
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.model.shape import Shape
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad, as_python_3_11_2
from tests.gpt2train.convert.megatron_trees import Model, make_model, write_tree
from tests.gpt2train.convert.model_folders import from_huggingface, to_huggingface

VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT = 130, 4, 4, 8, 6
SHAPE = Shape(VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT)
MODEL = make_model(VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT)
ARGS = {"num_attention_heads": HEADS, "hidden_size": HIDDEN, "ffn_hidden_size": 4 * HIDDEN, "swiglu": False}


def same(weights: LazyWeights, model: Model, shape: Shape = SHAPE) -> bool:
    assert weights.shape == shape
    theirs = to_huggingface(weights.read(), shape)
    assert {name.removeprefix("transformer.") for name in theirs} == model.keys()
    return all(torch.equal(theirs[f"transformer.{name}"], model[name]) for name in model)


def ours(model: Model, shape: Shape) -> LazyWeights:
    return LazyWeights(shape, in_memory(from_huggingface(model, shape)))


@pytest.mark.parametrize(
    ("layout", "version", "old"),
    [
        ({}, 0.0, True),
        ({}, 1.0, True),
        ({"tp": 2}, 2.0, False),
        ({"tp": 4}, 0.0, True),
        ({"pp": 4}, 3.0, False),
        ({"tp": 2, "pp": 2}, 1.0, False),
        ({"tp": 4, "pp": 2}, 3.0, True),
        ({"pp": 2, "virtual": 2}, 3.0, False),
        ({"tp": 2, "pp": 2, "virtual": 2}, 0.0, False),
    ],
)
def test_every_layout_version_and_naming_is_read(tmp_path: Path, layout: Any, version: float, old: bool) -> None:
    tracker = "release" if old else "500"
    write_tree(tmp_path, MODEL, HEADS, version=version, old=old, tracker=tracker, said=ARGS, **layout)
    opened = open_megatron(tmp_path, VOCAB)
    assert same(opened.weights, MODEL)
    assert opened.notes == ()
    step = tmp_path / ("release" if old else "iter_0000500")
    assert same(open_megatron(step, VOCAB).weights, MODEL)  # named without the tracker


@pytest.mark.parametrize("spec", ["local", "te"])
@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}, {"pp": 2, "virtual": 2}])
def test_the_names_of_megatron_core_are_read(tmp_path: Path, layout: Any, spec: Any) -> None:
    """Of both of its layer specifications, with the padded copy of the embedding on the last stage."""
    write_tree(tmp_path, MODEL, HEADS, core=spec, said=ARGS | {"vocab_size": VOCAB}, **layout)
    opened = open_megatron(tmp_path)
    assert same(opened.weights, MODEL) and opened.notes == ()


@pytest.mark.parametrize("is_old", [False, True])
def test_args_with_objects_of_megatron_are_read_without_its_code(tmp_path: Path, is_old: bool) -> None:
    """Each release puts other enums beside the weights."""
    modules = [types.ModuleType(name) for name in ("megatron", "megatron.core", "megatron.core.of_tomorrow")]
    with pytest.MonkeyPatch.context() as patch:
        if is_old:
            as_python_3_11_2(patch)
        for module in modules:
            patch.setitem(sys.modules, module.__name__, module)
        kind = enum.Enum("Backend", {"flash": 1}, module=modules[-1].__name__)
        modules[-1].Backend = kind  # type: ignore[attr-defined]
        said = ARGS | {"backend": kind["flash"]}
        write_tree(tmp_path, MODEL, HEADS, core="te", said=said, rerun={"mode": kind["flash"]})
    assert same(open_megatron(tmp_path, VOCAB).weights, MODEL)


@pytest.mark.parametrize(("backend", "tracked"), [("zarr", True), ("fsdp_dtensor", False)])
def test_another_distributed_format_is_named_with_the_remedy(tmp_path: Path, backend: str, tracked: bool) -> None:
    step = tmp_path / "iter_0000100"
    step.mkdir()
    for name in (".metadata", "__0_0.distcp", "common.pt"):
        (step / name).write_bytes(b"x")
    (step / "metadata.json").write_text(json.dumps({"sharded_backend": backend, "sharded_backend_version": 1}))
    if tracked:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    place = tmp_path if tracked else step
    assert detect(place) == "megatron-core"
    with pytest.raises(UserError, match=f"distributed format {backend}, .* --ckpt-format torch_dist"):
        open_megatron(place)


@settings(max_examples=12)
@given(
    tp=st.sampled_from([1, 2, 3]),
    pp=st.sampled_from([1, 2, 3]),
    version=st.integers(0, 3),
    names=st.sampled_from(["old", "new"]),
    heads=st.integers(1, 2),
    layers=st.integers(1, 2),
    head_dim=st.integers(1, 3),
    vocab=st.sampled_from([1, 128, 129]),
    options=st.sampled_from([(), (("activation", "gelu"),)]),
)
def test_round_trips_are_exact(
    tp: int, pp: int, version: Any, names: Any, heads: int, layers: int, head_dim: int, vocab: int, options: Any
) -> None:
    """Bit for bit, the padded rows of the vocabulary too."""
    shape = Shape(vocab, layers * pp, heads * tp, heads * tp * head_dim, 3, options=options)
    weights = from_huggingface(make_model(vocab, shape.layers, shape.heads, shape.hidden, 3), shape)
    weights["wte.weight"][vocab:] = torch.randn(shape.padded_vocab - vocab, shape.hidden)
    with tempfile.TemporaryDirectory() as folder:
        source = LazyWeights(shape, in_memory(weights))
        write_megatron(Path(folder) / "m", source, tp=tp, pp=pp, version=version, names=names)
        opened = open_megatron(Path(folder) / "m")
        back = opened.weights.read()
        ranks = [read_pickle(file, ALLOWED) for file in Path(folder).rglob("model_optim_rng.pt")]
    assert opened.weights.shape == shape and len(ranks) == tp * pp
    assert {rank["checkpoint_version"] for rank in ranks} == {version}
    assert back.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize(("tp", "pp", "old"), [(1, 1, False), (2, 2, True), (4, 1, False), (1, 4, True)])
def test_what_is_written_is_what_megatron_writes(tmp_path: Path, tp: int, pp: int, version: Any, old: bool) -> None:
    """Names and bits of every file, against the tests' own tree; padding of the vocabulary apart."""
    theirs = write_tree(tmp_path / "theirs", MODEL, HEADS, tp=tp, pp=pp, version=version, old=old, tracker="release")
    ours_ = tmp_path / "ours"
    write_megatron(ours_, ours(MODEL, SHAPE), tp=tp, pp=pp, version=version, names="old" if old else "new")
    files = sorted(str(file.relative_to(theirs)) for file in theirs.rglob("*") if file.is_file())
    assert files == sorted(str(file.relative_to(ours_)) for file in ours_.rglob("*") if file.is_file())
    assert (ours_ / files[0]).read_text() == "release"
    with torch.serialization.safe_globals([argparse.Namespace]):
        for file in files[1:]:
            a, b = (torch.load(root / file, weights_only=True) for root in (theirs, ours_))
            assert b["args"].padded_vocab_size == 128 * tp * -(-VOCAB // (128 * tp))
            assert b["checkpoint_version"] == version
            equal(a["model"], b["model"])


def equal(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    else:
        assert a.shape == b.shape
        real = ~(a == 7.5).all(-1) if a.ndim == 2 else slice(None)
        assert torch.equal(a[real], b[real])


def test_state_beside_the_weights_is_left_out_with_a_note(tmp_path: Path) -> None:
    """Optimizer, random state as numpy and Python have it, and args with their own classes; half precision is kept."""
    rng = [{"np_rng_state": np.random.RandomState(3).get_state(), "random_rng_state": random.Random(1).getstate()}]
    optimizer = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "fp32_from_fp16_params": [[torch.ones(2)]]}
    said = ARGS | {"params_dtype": torch.float16, "bias_gelu_fusion": False, "lr": 1e-4, "vocab_size": VOCAB}
    half = {name: tensor.half() for name, tensor in MODEL.items()}
    write_tree(tmp_path, half, HEADS, tp=2, said=said, rng_state=rng, optimizer=optimizer)
    opened = open_megatron(tmp_path)  # the vocabulary is in its args
    assert opened.weights.shape == replace(SHAPE, options=(("activation", "gelu"),))
    assert same(replace(opened.weights, shape=SHAPE), {name: tensor.float() for name, tensor in half.items()})
    [note] = opened.notes
    assert "optimizer" in note and "not converted" in note


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, archive: bool) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "c" / "mp_rank_00"
    folder.mkdir(parents=True)
    state = {"model": {"language_model": {"w": torch.ones(2)}}, "args": CodeOnLoad(mark)}
    file = folder / "model_optim_rng.pt"
    torch.save(state, file, _use_new_zipfile_serialization=archive)
    with pytest.raises(UserError, match=r"is refused, as a pickle can run code: it names posix\.mkdir"):
        open_megatron(tmp_path / "c", 10)
    assert not mark.exists()
    file.write_bytes(pickle.dumps(state))
    with pytest.raises(UserError, match=r"model_optim_rng\.pt"):
        open_megatron(tmp_path / "c", 10)
    assert not mark.exists()
    pickle.loads(file.read_bytes())  # noqa: S301 - to see that it would have run
    assert mark.exists()


def test_heads_and_vocabulary_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", MODEL, HEADS)
    assert same(open_megatron(tmp_path / "a", VOCAB, HEADS).weights, MODEL)
    with pytest.raises(UserError, match="fewer than the vocabulary of 50,257"):
        open_megatron(tmp_path / "a", 50257, HEADS)
    with pytest.raises(UserError, match="heads fit neither"):
        open_megatron(tmp_path / "a", VOCAB, 3)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"swiglu": True}, "swiglu is True"),
        ({"untie_embeddings_and_output_weights": True}, "untie"),
        ({"ffn_hidden_size": 20}, r"ffn_hidden_size is 20; only 32, as in GPT-2"),
        ({"tensor_model_parallel_size": 8}, "tensor_model_parallel_size 8, but has 2"),
        ({"layernorm_epsilon": 1e-6}, "layernorm_epsilon"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    write_tree(tmp_path, MODEL, HEADS, tp=2, said=ARGS | args)
    with pytest.raises(UserError, match=message):
        open_megatron(tmp_path, VOCAB)


def test_broken_trees_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a Megatron-LM checkpoint"):
        open_megatron(tmp_path)
    (tmp_path / "empty/iter_0000007").mkdir(parents=True)
    (tmp_path / "empty/latest_checkpointed_iteration.txt").write_text("7")
    with pytest.raises(UserError, match="iter_0000007 has no mp_rank_"):
        open_megatron(tmp_path / "empty")
    tree = write_tree(tmp_path / "t", MODEL, HEADS, tp=2, pp=2, said=ARGS)
    rank = tree / "iter_0000500/mp_rank_01_001"
    rank.rename(tmp_path / "aside")
    with pytest.raises(UserError, match="no mp_rank_01_001, one of 2 x 2"):
        open_megatron(tree, VOCAB)
    write_tree(tmp_path / "later", MODEL, HEADS, tp=2, pp=2, said=ARGS, iteration=501)
    (tmp_path / "later/iter_0000500/mp_rank_01_001").rename(rank)
    with pytest.raises(UserError, match="another save: iteration 501, but 500"):
        open_megatron(tree, VOCAB)
    (rank / "model_optim_rng.pt").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(UserError, match=r"mp_rank_01_001/model_optim_rng\.pt"):
        open_megatron(tree, VOCAB)
    (tree / "latest_checkpointed_iteration.txt").write_text("600")
    with pytest.raises(UserError, match="iter_0000600, which does not exist"):
        open_megatron(tree, VOCAB)
    (tree / "latest_checkpointed_iteration.txt").write_text("../../etc")
    with pytest.raises(UserError, match="expected a number or release"):
        open_megatron(tree, VOCAB)


def test_an_untied_head_is_refused(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, MODEL, HEADS, pp=2, said=ARGS)
    file = tree / "iter_0000500/mp_rank_00_001/model_optim_rng.pt"
    state = torch.load(file, weights_only=False)
    state["model"]["word_embeddings_for_head"]["weight"][3, 3] += 1
    torch.save(state, file)
    with pytest.raises(UserError, match="only tied embeddings"):
        open_megatron(tree, VOCAB)
