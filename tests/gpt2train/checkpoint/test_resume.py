"""Resuming a run, and its initial state, also of another format: differences are refused or logged."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gpt2train.checkpoint.manager import CheckpointManager
from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import RunConfig
from gpt2train.convert.from_weights import write_checkpoint
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.initial_weights import open_initial_weights
from gpt2train.data.tokenizer import tokenizer_hash
from gpt2train.data.training_data import packed_data
from gpt2train.errors import RunError, UserError
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.run_folder import checkpoint_name, list_checkpoints, newest_checkpoint
from gpt2train.train import train
from gpt2train.training.engine import Engine
from gpt2train.training.train_state import START
from tests.gpt2train.convert.megatron_trees import make_model, write_tree
from tests.gpt2train.convert.model_folders import from_huggingface, write_model, write_tokenizer
from tests.gpt2train.indexed_writer import write_documents
from tests.gpt2train.jobs import VOCAB, curve, finish, make, start, weights, write

SAVING = {"interval": 3, "keep": 9}


@pytest.fixture(scope="module")
def saved_run(tokens: Path, tmp_path_factory: pytest.TempPathFactory, alone: DistContext) -> RunConfig:
    config = make(tokens, tmp_path_factory.mktemp("finished") / "run", steps=10, checkpoints=SAVING)
    train(config, alone)
    return config


def from_(tokens: Path, output: Path, start: Path | str, how: str, **changes: Any) -> RunConfig:
    checkpoints = SAVING | {"init_from": str(start), "restore": how}
    return make(tokens, output, **({"steps": 10, "checkpoints": checkpoints} | changes))


def copy(run: RunConfig, to: Path) -> Path:
    shutil.copytree(run.output, to)
    return to


@pytest.mark.parametrize("how", ["weights", "optimizer", "full"])
def test_a_new_run_restores_what_it_asks_for(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, how: str
) -> None:
    config = from_(tokens, tmp_path / "run", saved_run.output, how)
    engine, other = Engine(config, alone), Engine(saved_run, alone)
    fresh = {name: value.clone() for name, value in engine.state().items()}
    with CheckpointManager(saved_run) as checkpoints:
        checkpoints.restore(other.state(), open_initial_weights)
    with CheckpointManager(config) as checkpoints:
        position = checkpoints.restore(engine.state(), open_initial_weights)
    there = read_manifest(newest_checkpoint(saved_run.output)).position
    assert position == (there if how == "full" else START)
    for name, value in engine.state().items():
        source = fresh if how == "weights" and name.startswith("optim.") else other.state()
        assert torch.equal(value, source[name]), name
    assert not torch.equal(fresh["model.wte.weight"], engine.state()["model.wte.weight"])


def test_a_full_restore_is_bit_for_bit(tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig) -> None:
    checkpoint = list_checkpoints(saved_run.output)[1]
    config = from_(tokens, tmp_path / "run", checkpoint, "full")
    train(config, alone)
    assert curve(config.output, "step") == [7, 8, 9, 10]
    assert curve(config.output) == curve(saved_run.output)[6:]
    shutil.rmtree(newest_checkpoint(config.output))  # its own checkpoints come first, even if the other is gone
    again = from_(tokens, tmp_path / "run", "/nowhere", "full")
    train(again, alone)
    assert curve(config.output) == curve(saved_run.output)[6:]


def test_folders_in_the_place_of_a_runs_files_are_kept_and_end_nothing(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig
) -> None:
    run = copy(saved_run, tmp_path / "run")
    names = ("config.toml", "metrics.jsonl", "samples.jsonl", "run.json")
    for name in names:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()
        (run / name / "mine").touch()
    train(make(tokens, run, steps=12, checkpoints=SAVING), alone)
    assert curve(str(run), "step") == [11, 12]
    assert all((run / f"{name}.old" / "mine").exists() for name in names)


def test_loss_scale_and_norm_history_are_restored(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    """In half precision, from a scale that overflows in the first steps; dropout is on, and the optimizer is Muon."""
    changes: dict[str, Any] = {
        "precision": "fp16",
        "model": {"dropout": 0.1},
        "optimizer": {"name": "muon", "muon_momentum": 0.9},
        "scaler": {"initial": 2.0**28, "window": 2, "hysteresis": 1},
        "spikes": {"threshold_sigma": 0.5, "window": 8, "max_skipped_steps": 99},
        "steps": 24,
    }
    straight = make(tokens, tmp_path / "straight", checkpoints={"interval": 12, "keep": 9}, **changes)
    train(straight, alone)
    rows = read_metrics(straight.output)
    assert [row["loss_scale"] for row in rows[:3]] == [2.0**27, 2.0**26, 2.0**25]
    assert all(row["grad_norm"] is None and row["lr"] == 0 for row in rows[:3])
    assert next(row["lr"] for row in rows if row["lr"]) == pytest.approx(1e-2 / 4)  # the first of 3 steps of warm-up
    checkpoint = list_checkpoints(straight.output)[0]
    position = read_manifest(checkpoint).position
    done = position.step  # 12, or later where steps were skipped just then
    assert 12 <= done < 24 and position.skipped and position.scale and position.history.values
    again = from_(tokens, tmp_path / "again", checkpoint, "full", **changes)
    train(again, alone)
    for key in ("loss", "grad_norm", "lr", "loss_scale", "skipped"):
        assert curve(again.output, key) == curve(straight.output, key)[done:], key
    ours, theirs = weights(again.output), weights(straight.output)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_unusable_starts_are_refused(tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("/nowhere/at/all", str(tmp_path / "empty"), f"{saved_run.output}/checkpoints"):
        with pytest.raises(UserError, match=f"init_from: there is no checkpoint at {place}"):
            train(from_(tokens, tmp_path / "a", place, "weights"), alone)
    muon: dict[str, Any] = {"steps": 12, "optimizer": {"name": "muon"}}
    another = r"another optimizer.name \(adamw there, muon now\); .*restore = 'weights'"
    for restore, changes, message in (
        ("weights", {"model": {"hidden": 64}}, r"has another model.hidden \(32 there, 64 now\)"),
        ("full", {"seed": 5}, r"has a run with another seed \(1234 there, 5 now\)"),
        ("full", {"steps": 8}, "is at step 10, beyond steps = 8"),
        ("optimizer", muon, another),
        ("full", muon, another),
    ):
        with pytest.raises(UserError, match=message):
            train(from_(tokens, tmp_path / "b", saved_run.output, restore, **changes), alone)
    with pytest.raises(UserError, match=r"is a checkpoint, not the folder of a run: .*init_from"):
        train(make(tokens, newest_checkpoint(saved_run.output)), alone)
    assert not any((tmp_path / name / "metrics.jsonl").exists() for name in "ab")


def test_damage_of_an_initial_checkpoint_is_named(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    other = copy(saved_run, tmp_path / "other")
    damaged, before = newest_checkpoint(other), list_checkpoints(other)[-2]
    (damaged / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(RunError, match="the checkpoint is damaged"):  # this very one was asked for
        train(from_(tokens, tmp_path / "a", damaged, "weights"), alone)
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.INFO), CheckpointManager(from_(tokens, tmp_path / "b", other, "full")) as checkpoints:
        engine = Engine(saved_run, alone)
        assert checkpoints.restore(engine.state(), open_initial_weights).step == 9
    assert "the checkpoint is damaged" in caplog.text and f"of {before}" in caplog.text
    for checkpoint in list_checkpoints(other):
        (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match=r"all 4 checkpoints in .* are damaged"):
        train(from_(tokens, tmp_path / "c", other, "weights"), alone)


def test_other_training_data_is_refused(tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig) -> None:
    run = copy(saved_run, tmp_path / "run")
    write_documents(tmp_path / "other", [[5] * 40] * 30)
    moved = tmp_path / "moved"
    shutil.copytree(tokens, moved)
    train(make(moved, run, steps=10), alone)  # the same data under another path
    data = {"train": str(tmp_path / "other")}
    with pytest.raises(UserError, match=r"other training data \(.*other had [\d,]+ tokens there and has 1,200 now\)"):
        train(make(tokens, run, steps=10, data=data), alone)
    two = {"train": [{"prefix": str(tokens / "train")}, {"prefix": str(tmp_path / "other")}]}
    with pytest.raises(UserError, match=r"other training data \(1 corpus there, 2 now\)"):
        train(make(tokens, run, steps=10, data=two), alone)
    with (moved / "train.bin").open("r+b") as file:  # one token within a sampled chunk
        file.seek(16)
        file.write(b"\x01\x00" if file.read(2) != b"\x01\x00" else b"\x02\x00")
    with pytest.raises(UserError, match=r"moved/train has other documents"):
        train(make(moved, run, steps=10), alone)


def test_other_corpus_weights_count_as_other_data(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    def mixed(first: float, second: float) -> RunConfig:
        weights = {"train": first, "valid": second}
        corpora = [{"prefix": str(tokens / name), "weight": weight} for name, weight in weights.items()]
        return make(tokens, tmp_path / "run", steps=2, schedule={"warmup": 1}, data={"train": corpora})

    train(mixed(3, 1), alone)
    train(mixed(6, 2), alone)  # the same shares
    with pytest.raises(UserError, match=r"train had 75.0% of the samples there and has 50.0% now"):
        train(mixed(1, 1), alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"hidden": 64}}, "holds a run with another model.hidden "),
        ({"model": {"layers": 3}}, "holds a run with another model.layers "),
        ({"model": {"context": 8}}, "holds a run with another model.context "),
        ({"model": {"max_positions": 32}}, "holds a run with another model.max_positions "),
        ({"vocab": 301}, "holds a run with another vocab "),
        ({"seed": 2}, "holds a run with another seed "),
        ({"tokenizer_hash": "x"}, "holds a run with another tokenizer_hash "),
        ({"documents": {"reset_positions": True}}, "holds a run with another documents.reset_positions "),
        (
            {"optimizer": {"name": "muon"}},
            r"holds a run with another optimizer.name \(adamw there, muon now\); set it back, or start from its",
        ),
        ({"steps": 8}, "is at step 10, beyond steps = 8"),
    ],
)
def test_another_run_in_the_folder_is_refused(
    tokens: Path, alone: DistContext, saved_run: RunConfig, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(make(tokens, Path(saved_run.output), **({"steps": 10} | change)), alone)


def test_other_training_settings_may_change_and_are_logged(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(saved_run, tmp_path / "run")
    ramp_up = {"start": 2, "increment": 2, "samples": 4}
    changes = {"model": {"dropout": 0.1}, "optimizer": {"lr": 5e-3}, "batch": {"global_batch": 4, "ramp_up": ramp_up}}
    changed = make(tokens, run, steps=12, precision="bf16", **changes)
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.INFO):
        position = train(changed, alone)
    assert (position.step, position.samples) == (12, 88)
    assert "changed setting: optimizer.lr from 0.01 to 0.005" in caplog.text
    assert "changed setting: precision from fp32 to bf16" in caplog.text
    assert "changed setting: batch.ramp_up.start from off to 2" in caplog.text
    assert "changed setting: output" not in caplog.text


def test_a_run_whose_checkpoints_are_gone_keeps_its_metrics(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy(saved_run, tmp_path / "run")
    before = (run / "metrics.jsonl").read_bytes()
    shutil.move(run / "checkpoints", tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "unmounted")
    config = make(tokens, run, steps=10, checkpoints=SAVING)
    with pytest.raises(UserError, match=r"is a link to .*unmounted, which is not there; mount it"):
        train(config, alone)
    assert (run / "metrics.jsonl").read_bytes() == before
    (run / "checkpoints").unlink()
    (run / "checkpoints").touch()
    with pytest.raises(UserError, match="is a file, not the folder of the checkpoints"):
        train(config, alone)
    (run / "checkpoints").unlink()
    logging.getLogger("gpt2train").propagate = True
    assert train(config, alone).step == 10
    assert "has 10 steps, but no checkpoint of them: training begins at step 0" in caplog.text
    assert (run / "metrics.jsonl.old").read_bytes() == before
    shutil.rmtree(run / "checkpoints")
    train(config, alone)  # keeps both histories
    assert (run / "metrics.jsonl.old").read_bytes() == before
    assert len((run / "metrics.jsonl.old-2").read_text().splitlines()) == 10


def test_a_newest_checkpoint_on_a_disk_that_is_not_there_ends_the_run_at_once(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig
) -> None:
    run = copy(saved_run, tmp_path / "run")
    steps = sorted((run / "checkpoints").glob("step-*"))
    config = make(tokens, run, steps=12, checkpoints=SAVING)
    for moved in (steps[0], steps[-1]):
        shutil.move(moved, tmp_path / moved.name)
        moved.symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match=rf"{steps[-1].name} is a link to .*unmounted, which is not there; mount it"):
        train(config, alone)
    shutil.move(tmp_path / steps[-1].name, tmp_path / "unmounted")
    assert train(config, alone).step == 12  # also with the link of an old one
    (run / "checkpoints/step-00000099").touch()
    with pytest.raises(UserError, match="step-00000099 is a file, not a checkpoint; remove it"):
        train(config, alone)


def test_files_of_others_in_an_output_are_kept(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    own = {"metrics.jsonl": '{"visitors": 12}\n', "samples.jsonl": '{"dose": 3}\n', "config.toml": "port = 8080\n"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    train(make(tokens, tmp_path, steps=4), alone)
    train(make(tokens, tmp_path, steps=5), alone)
    assert {name: (tmp_path / f"{name}.old").read_text() for name in own} == own
    assert not list(tmp_path.glob("*.old-*"))


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("manifest.json", "{} has no manifest.json and cannot be used; removing it"),
        ("__0_0.distcp", "the checkpoint is damaged: {}/__0_0.distcp has 0 bytes"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_skipped_for_the_one_before(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, caplog: Any, lost: str, said: str
) -> None:
    run = copy(saved_run, tmp_path / "run")

    def damage(checkpoint: Path) -> None:
        (checkpoint / lost).unlink() if lost == "manifest.json" else (checkpoint / lost).write_bytes(b"")

    damage(newest := newest_checkpoint(run))
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.INFO):
        train(make(tokens, run, steps=10, checkpoints=SAVING), alone)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1 and warned[0].startswith(said.format(newest)), warned
    assert "resuming from step 9" in caplog.text
    assert curve(run) == curve(saved_run.output)  # step 10 again, bit for bit
    for checkpoint in list_checkpoints(run):
        damage(checkpoint)
    with pytest.raises(RunError, match=r"all 4 checkpoints in .* are damaged"):
        train(make(tokens, run, steps=10, checkpoints=SAVING), alone)
    assert len(list((run / "checkpoints").glob("step-*"))) == 4


@pytest.mark.parametrize("change", [{"format": 2}, {"masks": []}])
def test_a_checkpoint_of_a_later_version_is_no_damage_and_stays(
    tokens: Path, tmp_path: Path, alone: DistContext, saved_run: RunConfig, change: dict[str, Any]
) -> None:
    """The run would fall back, reach its step again and replace it."""
    run = copy(saved_run, tmp_path / "run")
    manifest = newest_checkpoint(run) / "manifest.json"
    (manifest.parent / ".manifest.sha256").unlink()
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | change))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.suffix != ".log"}
    with pytest.raises(UserError, match=rf"another version of gpt2train wrote {manifest} \({next(iter(change))} = "):
        train(make(tokens, run, steps=10, checkpoints=SAVING), alone)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.suffix != ".log"} == before


@pytest.mark.exhaustive
def test_other_validation_data_is_logged_and_resets_the_best_checkpoint(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    """The new set is one document of a single token: its losses are far below those of the first set, or above."""
    write_documents(tmp_path / "other", [[5] * 40] * 30)
    saving = {"interval": 2, "keep": 1, "keep_best": 1}
    settings: dict[str, Any] = {"checkpoints": saving, "validation": {"interval": 2, "samples": 7}}
    train(make(tokens, tmp_path / "run", steps=6, **settings), alone)
    first = {row["step"]: row["valid_loss"] for row in read_metrics(tmp_path / "run") if "valid_loss" in row}
    data = {"train": str(tokens / "train"), "valid": str(tmp_path / "other")}
    logging.getLogger("gpt2train").propagate = True
    with caplog.at_level(logging.WARNING):
        train(make(tokens, tmp_path / "run", steps=10, data=data, **settings), alone)
    assert "validation data has changed" in caplog.text and "best" in caplog.text
    second = {row["step"]: row["valid_loss"] for row in read_metrics(tmp_path / "run") if row.get("valid_loss")}
    expected = min((step for step in (8, 10)), key=lambda step: (second[step], step))
    assert min(first.values()) < second[expected]  # the old best would still be it
    assert (tmp_path / "run/checkpoints/best").read_text() == f"{checkpoint_name(expected)}\n"
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        train(make(tokens, tmp_path / "run", steps=12, data=data, **settings), alone)
    assert "validation data" not in caplog.text


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
    batch = packed_data(config, "train").batch(range(8))
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
