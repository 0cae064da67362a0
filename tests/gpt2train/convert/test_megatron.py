"""Checkpoints of Megatron-LM and Megatron-Core: read from trees of the tests, written, read back, refused."""

import argparse
import enum
import io
import json
import pickle
import random
import sys
import tempfile
import types
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpt2train.checkpoint.store import open_tensors
from gpt2train.cli import app, run_command
from gpt2train.convert.detect import detect
from gpt2train.convert.megatron import ALLOWED, MegatronCheckpoint, open_megatron
from gpt2train.convert.megatron_core_write import Target, write_megatron_core
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.convert.opened_source import open_source
from gpt2train.convert.optimizer_state import OptimizerState, step_tensor
from gpt2train.convert.safe_pickle import read_pickle
from gpt2train.errors import UserError
from gpt2train.model.families import Shape, sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad, as_python_3_11_2
from tests.gpt2train.convert.megatron_trees import Model, make_model, write_tree
from tests.gpt2train.convert.model_folders import from_huggingface, to_huggingface
from tests.gpt2train.jobs import curve, make

VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT = 130, 4, 4, 8, 6
SHAPE = Shape(VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT)
MODEL = make_model(VOCAB, LAYERS, HEADS, HIDDEN, CONTEXT)
ARGS = {"num_attention_heads": HEADS, "hidden_size": HIDDEN, "ffn_hidden_size": 4 * HIDDEN, "swiglu": False}
CORE_SHAPE = Shape(130, 4, 4, 16, 8)
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 4)]


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


def source(shape: Shape, updates: int = 7) -> tuple[LazyWeights, OptimizerState]:
    model = make_model(shape.vocab, shape.layers, shape.heads, shape.hidden, shape.context)
    tensors = {}
    torch.manual_seed(1)
    for name, size in sizes(shape).items():
        for key in ("exp_avg", "exp_avg_sq"):
            value = torch.rand(size)
            if name == "wte.weight":
                value[shape.vocab :] = 0
            tensors |= in_memory({f"{name}.{key}": value})
        tensors[f"{name}.step"] = step_tensor(updates)
    group = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
    state = OptimizerState(tensors, updates, 9, 72, group, 0.1, {"max_lr": 1e-3, "min_lr": 1e-4, "num_steps": 56})
    return LazyWeights(shape, in_memory(from_huggingface(model, shape))), state


def read(opened: MegatronCheckpoint) -> dict[str, Tensor]:
    assert opened.optimizer is not None
    state = {f"optim.{name}": stored.read(torch.float32) for name, stored in opened.optimizer.tensors.items()}
    return opened.weights.read() | state


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@settings(max_examples=8, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    form=st.sampled_from(["torch", "torch_dist"]),
    spec=st.sampled_from(["transformer_engine", "local"]),
    half=st.booleans(),
    distributed=st.booleans(),
    vocab=st.sampled_from([1, 128, 130, 250]),
    head_dim=st.sampled_from([1, 3, 16]),
)
def test_round_trips_of_core_are_exact(
    layout: Any, form: Any, spec: Any, half: bool, distributed: bool, vocab: int, head_dim: int
) -> None:
    """Weights in half precision come back from the optimizer's float32 copies."""
    shape = Shape(vocab, 4, 4, 4 * head_dim, 3)
    weights, state = source(shape)
    with tempfile.TemporaryDirectory() as folder:
        target = Target(*layout, spec, torch.bfloat16 if half else torch.float32, distributed)
        write_megatron_core(Path(folder) / "m", weights, state, form, target)
        opened = open_megatron(Path(folder) / "m")
        assert opened.weights.shape == shape and opened.notes == () and opened.optimizer is not None
        common = "common.pt" if form == "torch_dist" else "model_optim_rng.pt"
        args = read_pickle(next(Path(folder).rglob(common)), ALLOWED)["args"]
        assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size) == layout
        assert (opened.optimizer.updates, opened.optimizer.iteration, opened.optimizer.samples) == (7, 9, 72)
        assert opened.optimizer.schedule == state.schedule and opened.optimizer.weight_decay == 0.1
        assert opened.optimizer.group == state.group
        found = read(opened)
    expected = {f"optim.{name}": stored.read(torch.float32) for name, stored in state.tensors.items()}
    same_state(found, weights.read() | expected)


def test_weights_alone_are_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_python_3_11_2(monkeypatch)
    weights, _ = source(CORE_SHAPE)
    for form in ("torch", "torch_dist"):
        write_megatron_core(tmp_path / form, weights, None, form, Target(2, 2, dtype=torch.float16))  # type: ignore[arg-type]
        assert (tmp_path / form / "latest_checkpointed_iteration.txt").read_text() == "release"
        opened = open_megatron(tmp_path / form)
        assert opened.optimizer is None and opened.notes == ()
        same_state(opened.weights.read(), {name: tensor.half().float() for name, tensor in weights.read().items()})
    assert detect(tmp_path / "torch_dist") == "megatron-core"


def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    """By its own loader of such folders."""
    weights, state = source(CORE_SHAPE)
    write_megatron_core(tmp_path / "m", weights, state, "torch_dist", Target(2, 2))
    key, whole = "decoder.layers.mlp.linear_fc2.weight", torch.empty(4, 16, 64)
    found = {key: whole, f"optimizer.state.exp_avg.{key}": whole.clone()}
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path / "m/iter_0000009"), no_dist=True)
    for layer in range(4):
        name = f"blocks.{layer}.down.weight"
        assert torch.equal(found[key][layer], weights.tensors[name].read(torch.float32))
        moment = state.tensors[f"{name}.exp_avg"].read(torch.float32)
        assert torch.equal(found[f"optimizer.state.exp_avg.{key}"][layer], moment)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["torch_dist", "torch"])
def test_a_training_goes_on_from_megatron_core_as_from_its_own_checkpoint(
    tokens: Path, tmp_path: Path, alone: DistContext, form: str
) -> None:
    """Bit for bit, through the command, with the optimizer's state; also from the checkpoint converted back."""
    first = make(tokens, tmp_path / "first", steps=4, checkpoints={"interval": 4})
    train(first, alone)
    checkpoint = newest_checkpoint(first.output)
    assert checkpoint is not None
    there, back = str(tmp_path / "mcore"), str(tmp_path / "back")
    flags = ["--tp", "2", "--pp", "2", "--ckpt-format", form]
    assert run_command(app, ["convert", str(checkpoint), there, "--to", "megatron-core", *flags]) == 0
    assert (tmp_path / "mcore/latest_checkpointed_iteration.txt").read_text() == "4"
    assert run_command(app, ["convert", there, back, "--to", "gpt2train"]) == 0
    same_state(
        *({n: t.read(torch.float32) for n, t in open_tensors(c, "optim.").items()} for c in (checkpoint, Path(back)))
    )
    curves = []
    for name, init in (("a", str(checkpoint)), ("b", there), ("c", back)):
        again = make(tokens, tmp_path / name, steps=5, checkpoints={"init_from": init})
        train(again, alone)
        curves.append(curve(again.output))
    assert curves[0] == curves[1] == curves[2]
    weights = make(tokens, tmp_path / "d", steps=5, checkpoints={"init_from": there, "restore": "weights"})
    train(weights, alone)
    assert curve(weights.output)[0] == curves[0][0] and curve(weights.output) != curves[0]
    with pytest.raises(UserError, match="weights and optimizer only, no train state; use restore = 'optimizer'"):
        train(make(tokens, tmp_path / "e", checkpoints={"init_from": there, "restore": "full"}), alone)
    saved = open_megatron(Path(there)).optimizer
    assert saved is not None and (saved.iteration, saved.samples) == (4, 32)
    assert saved.schedule["lr_warmup_steps"] == 3 * 8 and saved.schedule["max_lr"] == 1e-2


def test_formats_and_layouts_are_converted_into_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, state = source(CORE_SHAPE)
    write_megatron_core(tmp_path / "0", weights, state, "torch", Target(4, 2, "local", torch.bfloat16))
    steps = (
        ("--tp", "2", "--dtype", "bfloat16"),
        ("--ckpt-format", "torch", "--pp", "4", "--distributed-optimizer", "--dtype", "float16"),
        ("--ckpt-format", "torch", "--transformer-impl", "local"),
    )
    for number, flags in enumerate(steps):
        command = ["convert", str(tmp_path / str(number)), str(tmp_path / str(number + 1)), "--to", "megatron-core"]
        assert run_command(app, [*command, *flags]) == 0
        assert "note: with the optimizer's state after 7 updates" in capsys.readouterr().out
    same_state(read(open_megatron(tmp_path / "0")), read(open_megatron(tmp_path / "3")))
    command = ["convert", str(tmp_path / "0"), str(tmp_path / "w"), "--to", "megatron-core", "--weights-only"]
    assert run_command(app, command) == 0 and open_source(tmp_path / "w").optimizer is None
    assert "note: the optimizer's state and the training position are not converted" in capsys.readouterr().out


def rank_file(root: Path, rank: str = "mp_rank_00") -> Path:
    return root / "iter_0000009" / rank / "model_optim_rng.pt"


def change(file: Path, edit: Any) -> None:
    state = torch.load(file, weights_only=False)
    edit(state)
    torch.save(state, file)


def doubled(model: dict[str, Any]) -> dict[str, Tensor]:
    """The first matrix of each MLP with a gate."""
    return {n: torch.cat((t, t)) for n, t in model.items() if n.endswith(("linear_fc1.weight", "linear_fc1.bias"))}


def rename(state: dict[str, Any], old: str, new: str | None) -> None:
    model = state["model"]
    for name in [name for name in model if old in name]:
        value = model.pop(name)
        if new is not None:
            model[name.replace(old, new)] = value


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: rename(s, "position_embeddings", None), "position_embedding_type is rope or none"),
        (lambda s: rename(s, "final_layernorm.bias", None), "normalization is 'RMSNorm'"),
        (lambda s: rename(s, "linear_fc1.bias", None), "add_bias_linear is False"),
        (lambda s: rename(s, "mlp.", "mlp.experts.local_experts.0."), "num_experts is set"),
        (lambda s: s["model"].update(doubled(s["model"])), "swiglu is True"),
        (
            lambda s: s["model"].update({n: t[:32] for n, t in s["model"].items() if "linear_qkv.weight" in n}),
            "num_query_groups or kv_channels is set",
        ),
        (lambda s: s["model"].update({"output_layer.weight": torch.ones(256, 16)}), "only tied embeddings"),
        (lambda s: setattr(s["args"], "rotary_base", 1) or setattr(s["args"], "swiglu", True), "swiglu is True"),
    ],
)  # fmt: skip
def test_another_architecture_is_refused_by_the_setting(tmp_path: Path, edit: Any, message: str) -> None:
    """By its tensors, where the file does not say it."""
    write_megatron_core(tmp_path / "m", source(CORE_SHAPE)[0], source(CORE_SHAPE)[1], "torch")
    change(rank_file(tmp_path / "m"), edit)
    with pytest.raises(UserError, match=message) as error:
        open_megatron(tmp_path / "m")
    assert "\n" not in str(error.value)


def test_ranks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_megatron_core(tmp_path / "m", *source(CORE_SHAPE), "torch", Target(2, 2))
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    change(rank_file(tmp_path / "m", "mp_rank_01_000"), lambda s: s["model"].update({name: s["model"][name][:9]}))
    expected = r"mlp.dense_h_to_4h.weight has the shape \(32, 16\) on tensor-parallel rank 0, but \(9, 16\) on rank 1"
    with pytest.raises(UserError, match=expected):
        open_megatron(tmp_path / "m")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda s: s["optimizer"]["state"].pop(3), "parameter groups"),
        (lambda s: s["optimizer"]["state"][3].update(exp_avg=torch.ones(2)), "other sizes"),
        (lambda s: s["optimizer"]["param_groups"].pop(), "other sizes"),
        (lambda s: s["optimizer"]["param_groups"][1]["params"].pop(), "lacks the moments"),
        (lambda s: s["optimizer"].pop("state"), "has no distrib_optim.pt"),
        (lambda s: [group.pop("step") for group in s["optimizer"]["param_groups"]], "has no step"),
        (lambda s: s.update(optimizer=[1]), "has no step"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_a_note_and_the_weights_are_read(
    tmp_path: Path, edit: Any, reason: str
) -> None:
    weights, state = source(CORE_SHAPE)
    write_megatron_core(tmp_path / "m", weights, state, "torch")
    change(rank_file(tmp_path / "m"), edit)
    opened = open_megatron(tmp_path / "m")
    assert opened.optimizer is None and len(opened.notes) == 1
    assert opened.notes[0].startswith("the optimizer's state is not converted") and reason in opened.notes[0]
    same_state(opened.weights.read(), weights.read())


def test_missing_and_truncated_files_are_one_line(tmp_path: Path) -> None:
    write_megatron_core(tmp_path / "m", *source(CORE_SHAPE), "torch_dist", Target(2, 2))
    step = tmp_path / "m/iter_0000009"
    for name, message in (
        ("__3_0.distcp", "has no __3_0.distcp, which its .metadata names; copy the whole folder"),
        (".metadata", "has no .metadata; copy the whole folder"),
        ("common.pt", "it does not exist; copy the whole folder"),
    ):
        (step / name).rename(tmp_path / "aside")
        with pytest.raises(UserError, match=message):
            open_megatron(tmp_path / "m")
        (tmp_path / "aside").rename(step / name)
    (tmp_path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))  # alone
    with pytest.raises(UserError, match=r"common\.pt: it does not exist"):
        open_megatron(tmp_path)
    data = (step / "__1_0.distcp").read_bytes()
    (step / "__1_0.distcp").write_bytes(data[:-100])
    with pytest.raises(UserError, match=r"__1_0.distcp ends after [\d,]+ of [\d,]+ bytes; copy it again"):
        open_megatron(tmp_path / "m")


@pytest.mark.parametrize("name", [".metadata", "common.pt", "__0_0.distcp"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    write_megatron_core(tmp_path / "m", source(CORE_SHAPE)[0], source(CORE_SHAPE)[1], "torch_dist")
    file, mark = tmp_path / "m/iter_0000009" / name, tmp_path / "mark"
    if name == ".metadata":
        metadata = pickle.loads(file.read_bytes())  # noqa: S301
        metadata.planner_data = CodeOnLoad(mark)
        file.write_bytes(pickle.dumps(metadata))
    elif name == "common.pt":
        torch.save({"args": Namespace(), "x": CodeOnLoad(mark)}, file)
    else:
        buffer = io.BytesIO()
        torch.save(CodeOnLoad(mark), buffer)
        data = file.read_bytes()
        file.write_bytes(buffer.getvalue() + data[len(buffer.getvalue()) :])
    with pytest.raises(UserError, match=r"posix\.mkdir|cannot read"):
        open_megatron(tmp_path / "m").weights.read()
    assert not mark.exists()


def test_heads_and_vocabulary_are_asked_for_without_args(tmp_path: Path) -> None:
    weights, state = source(CORE_SHAPE)
    write_megatron_core(tmp_path / "m", weights, state)
    step = tmp_path / "m/iter_0000009"
    change(step / "common.pt", lambda s: s.pop("args"))
    with pytest.raises(UserError, match="give --heads N"):
        open_megatron(step)
    with pytest.raises(UserError, match=r"256 embedding rows .* give --tokenizer DIR or --vocab N"):
        open_megatron(step, heads=4)
    same_state(open_megatron(step, 130, 4).weights.read(), weights.read())
    with pytest.raises(UserError, match="3 heads do not fit a width of 16"):
        open_megatron(step, 130, 3)
