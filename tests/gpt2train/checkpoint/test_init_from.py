"""Training from weights of another format (`init_from`): the first loss equals that of the source."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpt2train.config import RunConfig
from gpt2train.convert.from_weights import write_checkpoint
from gpt2train.convert.huggingface import from_huggingface, open_model, read_model, to_huggingface, write_model
from gpt2train.convert.megatron_write import write_megatron
from gpt2train.convert.merge import merge
from gpt2train.convert.opened_source import open_source
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.data.training_data import training_data
from gpt2train.errors import UserError
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.model.shape import Shape
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.convert.megatron_trees import make_model, write_tree
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.jobs import VOCAB, curve, finish, make, start, write

SHAPE = Shape(VOCAB, 2, 2, 32, 16)
RANKS = Path(__file__).parents[1] / "parity/train_runs.py"  # trains the given runs in one process group


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model in all formats: `hf`, `megatron` (TP 2, PP 2, version 0, old names), `native`; and its tokenizer."""
    root = tmp_path_factory.mktemp("sources")
    write_tokenizer(root / "tokenizer", VOCAB)
    model = {name: tensor * 0.3 for name, tensor in make_model(VOCAB, 2, 2, 32, 16).items()}
    write_model(root / "hf", from_huggingface(model, SHAPE), SHAPE, root / "tokenizer")
    write_tree(root / "megatron", model, 2, tp=2, pp=2, version=0.0, old=True, said={"num_attention_heads": 2})
    write_checkpoint(root / "native", LazyWeights(SHAPE, in_memory(from_huggingface(model, SHAPE))), root / "tokenizer")
    return root


def beginning(tokens: Path, output: Path, source: Path, **changes: Any) -> RunConfig:
    short: dict[str, Any] = {"steps": 2, "schedule": {"warmup": 1}, "checkpoints": {"init_from": str(source)}}
    return make(tokens, output, **(short | changes))


def evaluated(config: RunConfig, folder: Path) -> float:
    """Mean loss of a model folder over the samples of the first step, by the plain formula, without padding."""
    model = read_model(folder)
    batch = training_data(config).batch(range(8))
    logits = model(batch.tokens)[..., : model.shape.vocab].float()
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).item()


@pytest.mark.parametrize("kind", ["hf", "megatron", "native"])
def test_the_first_loss_is_that_of_the_source(
    tokens: Path, tmp_path: Path, alone: DistContext, sources: Path, kind: str
) -> None:
    config = beginning(tokens, tmp_path / "run", sources / kind)
    train(config, alone)
    assert curve(config.output)[0] == pytest.approx(evaluated(config, sources / "hf"), rel=1e-5)
    assert curve(config.output)[1] != curve(config.output)[0]


@pytest.mark.exhaustive
def test_two_processes_start_from_every_format(tokens: Path, tmp_path: Path, sources: Path) -> None:
    """Tensor-parallel, pipeline and ZeRO 3; each process keeps its share."""
    layouts: dict[str, Any] = {"tp": {"tp": 2}, "pp": {"pp": 2}, "zero": {"zero": 3}}
    kinds = {"tp": "megatron", "pp": "hf", "zero": "megatron"}
    runs = {
        name: beginning(tokens, tmp_path / name, sources / kinds[name], parallel=layout, batch={"micro_batch": 1})
        for name, layout in layouts.items()
    }
    code, _, err = finish(start(str(RANKS), *map(write, runs.values())))
    assert code == 0, err
    for name, config in runs.items():
        error = Path(f"{config.output}.error")
        assert not error.exists(), error.read_text()
        assert curve(config.output)[0] == pytest.approx(evaluated(config, sources / "hf"), rel=1e-5), name


@pytest.mark.parametrize("kind", ["hf", "megatron", "native"])
def test_another_shape_is_refused_with_the_setting(
    tokens: Path, tmp_path: Path, alone: DistContext, sources: Path, kind: str
) -> None:
    for name, changes, message in (
        ("a", {"model": {"hidden": 64}}, r"another model.hidden \(32 there, 64 now\)"),
        ("b", {"model": {"layers": 3}}, r"another model.layers \(2 there, 3 now\)"),
        ("c", {"model": {"context": 8}}, r"another model.context \(16 there, 8 now\)"),
    ):
        with pytest.raises(UserError, match=message):
            train(beginning(tokens, tmp_path / name, sources / kind, **changes), alone)
    more = {"vocab": 301} if kind != "megatron" else {"vocab": 999}
    with pytest.raises(UserError, match="vocab"):
        train(beginning(tokens, tmp_path / "d", sources / kind, **more), alone)
    with pytest.raises(UserError, match="weights only, no train state"):
        how = {"init_from": str(sources / kind), "restore": "full"}
        train(beginning(tokens, tmp_path / "e", sources / kind, checkpoints=how), alone)


def test_another_tokenizer_is_refused(tokens: Path, tmp_path: Path, alone: DistContext, sources: Path) -> None:
    for kind in ("hf", "native"):
        with pytest.raises(UserError, match="another tokenizer"):
            train(beginning(tokens, tmp_path / kind, sources / kind, tokenizer_hash="0" * 32), alone)
    same = beginning(tokens, tmp_path / "same", sources / "hf", tokenizer_hash=tokenizer_hash(sources / "tokenizer"))
    train(same, alone)
    assert curve(same.output)


def test_a_converted_checkpoint_is_merged(sources: Path, tmp_path: Path) -> None:
    merge(sources / "native", tmp_path / "m")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "m" / name).read_bytes() == (sources / "hf" / name).read_bytes()


def test_all_formats_give_bit_identical_weights(sources: Path, tmp_path: Path) -> None:
    weights = open_model(sources / "hf")
    write_megatron(tmp_path / "m", weights, tp=2, pp=2, version=1)
    expected = to_huggingface(weights.read(), SHAPE)
    for place in (tmp_path / "m", sources / "megatron", sources / "native", sources / "hf"):
        opened = open_source(place, tokenizer=sources / "tokenizer")
        found = to_huggingface(opened.weights.read(), opened.weights.shape)
        assert all(torch.equal(found[name], expected[name]) for name in expected), place
